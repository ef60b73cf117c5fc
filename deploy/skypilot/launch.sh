#!/bin/sh
# Launches each worker as a cluster of its own. A cluster takes itself down once its worker has ended.
set -eu
: "${ROLLCAST_INVITE:?make one with rollcast invite --quota N}"
: "${ROLLCAST_RELEASE:?set it to the URL of a release wheel that the machines install}"
cd "$(dirname "$0")"
sky launch --yes --detach-run --cluster rollcast-slurm-1 --env ROLLCAST_WORKER=slurm-1 --secret ROLLCAST_INVITE --env ROLLCAST_RELEASE --down --idle-minutes-to-autostop 10 slurm.yaml
sky launch --yes --detach-run --cluster rollcast-slurm-2 --env ROLLCAST_WORKER=slurm-2 --secret ROLLCAST_INVITE --env ROLLCAST_RELEASE --down --idle-minutes-to-autostop 10 slurm.yaml
sky launch --yes --detach-run --cluster rollcast-vast-1 --env ROLLCAST_WORKER=vast-1 --secret ROLLCAST_INVITE --env ROLLCAST_RELEASE --down --idle-minutes-to-autostop 10 vast.yaml
sky launch --yes --detach-run --cluster rollcast-vast-2 --env ROLLCAST_WORKER=vast-2 --secret ROLLCAST_INVITE --env ROLLCAST_RELEASE --down --idle-minutes-to-autostop 10 vast.yaml
sky launch --yes --detach-run --cluster rollcast-runpod-1 --env ROLLCAST_WORKER=runpod-1 --secret ROLLCAST_INVITE --env ROLLCAST_RELEASE --down --idle-minutes-to-autostop 10 runpod.yaml
sky launch --yes --detach-run --cluster rollcast-runpod-2 --env ROLLCAST_WORKER=runpod-2 --secret ROLLCAST_INVITE --env ROLLCAST_RELEASE --down --idle-minutes-to-autostop 10 runpod.yaml
