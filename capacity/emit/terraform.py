"""Write Terraform's JSON syntax for machines on AWS, spot and on-demand: one resource for each row of the pool.

The invite stays in AWS's Parameter Store; the machines read it when they boot, with a role that may read nothing else.
Sources: the provider hashicorp/aws (aws_instance, aws_iam_role, aws_ssm_parameter), and AWS's pages on finding the
images of Deep Learning AMI by public parameters.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import tomli_w

from capacity.emit.chosen import ChosenRow, Files, peer_settings

FILE = "workers.tf.json"
INVITE_PARAMETER = "/rollcast/invite"
_IMAGE_PARAMETER = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
_BOOT = """\
#!/bin/bash
set -eu
umask 077
mkdir -p /opt/rollcast
cd /opt/rollcast
aws ssm get-parameter --region %(region)s --with-decryption --name '${var.invite_parameter}' \\
  --query Parameter.Value --output text > invite.txt
cat > peer.toml <<'END'
%(peer)sEND
python3 -m venv venv && venv/bin/pip install --quiet 'rollcast[peer] @ ${var.release}'
systemd-run --unit=rollcast-peer --property=Restart=on-failure --working-directory=/opt/rollcast \\
  venv/bin/python -P -m rollcast.cli.main peer run peer.toml --set name=${each.key}
"""


def files_of(rows: Sequence[ChosenRow]) -> Files:
    """Return one file of resources; ``invite_parameter`` names the SecureString that holds the invite."""
    regions = list(dict.fromkeys(_region(one) for one in rows))
    document = {
        "terraform": {
            "required_version": ">= 1.5.0",
            "required_providers": {"aws": {"source": "hashicorp/aws", "version": ">= 5.20.0"}},
        },
        "provider": {"aws": [{"alias": _alias(region), "region": region} for region in regions]},
        "variable": _variables(),
        "data": {"aws_ssm_parameter": {_alias(region): _image(region) for region in regions}},
        "resource": {**_role(regions[0]), "aws_instance": {f"rollcast-{one.name}": _instance(one) for one in rows}},
    }
    count = sum(len(one.worker_ids) for one in rows)
    value = f'--type SecureString --value "$(rollcast invite --quota {count})"'
    steps = [f"aws ssm put-parameter --region {region} --name {INVITE_PARAMETER} {value}" for region in regions]
    return Files({FILE: json.dumps(document, indent=2) + "\n"}, (*steps, "terraform init", "terraform apply"))


def _region(one: ChosenRow) -> str:
    """Return the region of a row whose place may be one of its zones (``us-east-1a``)."""
    place = one.row.cloud_region
    return place[:-1] if place[-1].isalpha() else place


def _alias(region: str) -> str:
    return region.replace("-", "_")


def _variables() -> dict[str, Any]:
    return {
        "invite_parameter": {
            "type": "string",
            "default": INVITE_PARAMETER,
            "description": "Name of the SecureString in Parameter Store that holds the run's invite, in every region.",
        },
        "release": {"type": "string", "description": "URL of the release's wheel that the machines install."},
        "disk_gb": {"type": "number", "default": 100, "description": "Size of each machine's disk."},
    }


def _image(region: str) -> dict[str, Any]:
    return {"provider": f"aws.{_alias(region)}", "name": _IMAGE_PARAMETER}


def _role(region: str) -> dict[str, Any]:
    """Return the machines' role, which may read the invite and nothing else; roles belong to no region."""
    provider = f"aws.{_alias(region)}"
    assume = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "ec2.amazonaws.com"}}
    invite = "arn:aws:ssm:*:*:parameter${var.invite_parameter}"
    read = {"Effect": "Allow", "Action": "ssm:GetParameter", "Resource": invite}
    role = "${aws_iam_role.rollcast.name}"
    return {
        "aws_iam_role": {
            "rollcast": {"provider": provider, "name_prefix": "rollcast-", "assume_role_policy": _policy(assume)}
        },
        "aws_iam_role_policy": {
            "rollcast": {"provider": provider, "name": "read-invite", "role": role, "policy": _policy(read)}
        },
        "aws_iam_instance_profile": {"rollcast": {"provider": provider, "name_prefix": "rollcast-", "role": role}},
    }


def _policy(statement: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


def _instance(one: ChosenRow) -> dict[str, Any]:
    row, region = one.row, _region(one)
    instance: dict[str, Any] = {
        "provider": f"aws.{_alias(region)}",
        "for_each": f"${{toset({json.dumps(list(one.worker_ids))})}}",
        "ami": f"${{data.aws_ssm_parameter.{_alias(region)}.value}}",
        "instance_type": row.instance_type,
        "iam_instance_profile": "${aws_iam_instance_profile.rollcast.name}",
        "metadata_options": {"http_tokens": "required"},
        "root_block_device": {"volume_size": "${var.disk_gb}", "volume_type": "gp3", "encrypted": True},
        "user_data": _BOOT % {"region": region, "peer": tomli_w.dumps(_peer(one))},
        "user_data_replace_on_change": True,
        "tags": {"Name": "rollcast-${each.key}", "rollcast": one.name},
    }
    if row.cloud_region != region:
        instance["availability_zone"] = row.cloud_region
    if row.spot:
        options = {"spot_instance_type": "one-time", "instance_interruption_behavior": "terminate"}
        instance["instance_market_options"] = {"market_type": "spot", "spot_options": options}
    return instance


def _peer(one: ChosenRow) -> dict[str, Any]:
    return {**peer_settings(one.row), "invite_file": "invite.txt", "state_folder": "state"}
