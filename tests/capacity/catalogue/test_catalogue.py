"""Test the shipped tables: every row is read, and names the source of its figures."""

from __future__ import annotations

import csv
import math
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.catalogue.csv_tables import number_or_none, read_rows, read_text
from capacity.catalogue.egress import egress_usd_per_gb
from capacity.catalogue.gpus import gpu_named, gpus
from capacity.catalogue.models import model_named, models
from capacity.catalogue.origins import ORIGINS
from capacity.catalogue.prices import gpu_prices, other_price, rented_for_long
from capacity.catalogue.served import efficiencies, efficiency_of, interval_of, measured_decodes, modelled_decodes
from capacity.catalogue.step_times import step_times
from capacity.catalogue.token_lengths import LENGTH_NAMES, lengths_named
from capacity.model.roofline import UNTIMED_EFFICIENCY
from rollcast.policy.config import LoraConfig, ModelConfig, adapted
from rollcast.policy.lora import adapter_shapes
from rollcast.policy.published import ARCHITECTURES
from rollcast.policy.shapes import active_parameter_count, parameter_count


def test_all_figures_are_of_the_right_size() -> None:
    for gpu in gpus().values():
        assert 2**34 <= gpu.memory_bytes <= 2**39
        assert 2e11 < gpu.bandwidth_bytes_per_second < 1e13
        assert 5e13 < gpu.flops_per_second < 3e15


@pytest.mark.parametrize(
    ("name", "memory_gib", "found"),
    [
        ("rtx-4090", None, "rtx-4090"),
        ("RTX4090", 24, "rtx-4090"),
        ("H100", 80, "h100-pcie"),  # the slowest of that name
        ("A100", 80, "a100-pcie"),
        ("A100", 40, "a100-pcie-40gb"),
        ("A100", 64, None),
        ("NVIDIA GeForce RTX 4090", None, "rtx-4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None, None),
        ("NVIDIA GeForce RTX 4090 D", None, None),
        ("NVIDIA GeForce RTX 3090 Ti", None, "rtx-3090-ti"),
        ("RTX_4090", None, "rtx-4090"),
        ("A100-SXM4-80GB", None, "a100-sxm"),
        ("NVIDIA A100-SXM4-40GB", None, "a100-sxm-40gb"),
        ("NVIDIA A100 80GB PCIe", None, "a100-pcie"),
        ("NVIDIA A100-PCIE-40GB", None, "a100-pcie-40gb"),
        ("A100 SXM4", None, "a100-sxm"),
        ("NVIDIA H100 80GB HBM3", None, "h100-sxm"),
        ("NVIDIA H100 PCIe", None, "h100-pcie"),
        ("NVIDIA H100 NVL", None, "h100-nvl"),
        ("NVIDIA RTX 6000 Ada Generation", None, "rtx-6000-ada"),
        ("RTX 6000Ada", None, "rtx-6000-ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", None, "rtx-pro-6000-server"),
        ("RTX PRO 6000 WS", None, "rtx-pro-6000-server"),
        ("RTXPRO6000", 96, "rtx-pro-6000-server"),
        ("NVIDIA L40S", 45, "l40s"),
        ("RTX A6000", None, "rtx-a6000"),
        ("NVIDIA B200", None, "b200-sxm"),
        (" H100-SXM ", None, "h100-sxm"),
        ("H200", 141, "h200-sxm"),
        ("abacus", None, None),
        ("", None, None),
    ],
)
def test_others_names_lead_to_ours(name: str, memory_gib: float | None, found: str | None) -> None:
    gpu = gpu_named(name, memory_gib)
    assert (gpu.name if gpu else None) == found


@given(st.sampled_from(sorted(gpus())), st.sampled_from(["", "NVIDIA ", "Nvidia GeForce "]), st.sampled_from(" -_"))
def test_a_name_is_known_with_brands_and_other_separators(name: str, brand: str, separator: str) -> None:
    assert gpu_named(brand + name.replace("-", separator)) is gpus()[name]
    assert gpu_named(brand + name.upper().replace("-", separator) + " Laptop GPU") is None


@given(st.text(max_size=40), st.floats(0, 200) | st.none())
def test_no_text_breaks_the_search_of_a_name(name: str, memory_gib: float | None) -> None:
    found = gpu_named(name, memory_gib)
    assert found is None or found in gpus().values()


def test_empty_cells_are_not_known() -> None:
    assert number_or_none("") is None
    assert number_or_none("1e9") == 1e9


def test_every_table_has_its_origin_and_licence_in_its_folder() -> None:
    folders = [folder for folder in (resources.files("capacity.catalogue") / "data").iterdir() if folder.is_dir()]
    assert {folder.name for folder in folders} == set(ORIGINS)
    for folder in folders:
        text = read_text(folder.name, "README.md").lower()
        assert "origin" in text or "transcribed" in text, folder.name
        assert "licence" in text or "license" in text or "apache" in text, folder.name
        assert any(file.name.endswith(".csv") for file in folder.iterdir())


def test_every_row_has_all_columns() -> None:
    for folder, file in (("gpus", "gpus.csv"), ("models", "models.csv"), ("skyplane", "region_egress.csv")):
        rows = read_rows(folder, file)
        header = next(csv.reader(read_text(folder, file).splitlines()))
        assert all(set(row) == set(header) and None not in row.values() for row in rows)


def test_a_model_is_known_by_its_name_and_its_repository() -> None:
    assert model_named("qwen3-8b") is model_named("Qwen/Qwen3-8B") is models()["qwen3-8b"]
    assert model_named("unheard-of-9b") is None


def test_sizes_are_those_of_their_names() -> None:
    assert models()["qwen3-8b"].weight_bytes == pytest.approx(16.4e9, rel=0.01)
    assert models()["qwen3-8b"].kv_bytes_per_token == 147_456
    assert models()["qwen3-30b-a3b"].computed_parameters == pytest.approx(3e9, rel=0.05)
    for model in models().values():
        assert 0 < model.computed_parameters <= model.parameters


@pytest.mark.parametrize("preset", ARCHITECTURES)
def test_every_model_that_can_be_trained_is_known_with_the_same_sizes(preset: str) -> None:
    config, model = ModelConfig(preset=preset), models()[preset]
    assert model.parameters == parameter_count(config)
    assert model.width == config.width
    if config.experts:
        assert model.active_parameters == active_parameter_count(config)
    adapters = adapter_shapes(adapted(config, LoraConfig(rank=16)))
    assert model.adapter_bytes(16) == 2 * sum(math.prod(shape) for shape in adapters.values())
    assert (model.layers, model.kv_heads, model.head_dim) == (config.layers, config.key_value_heads, config.head_size)


def test_every_origin_names_source_date_and_licence() -> None:
    for folder, origin in ORIGINS.items():
        assert folder == origin.folder
        assert origin.source
        assert origin.licence
        assert origin.measured[:2] == "20"
        assert origin.relative_uncertainty is None or 0 < origin.relative_uncertainty < 1


def test_every_price_has_a_source_a_date_and_known_hardware() -> None:
    assert len(gpu_prices()) == 24
    for price in gpu_prices():
        assert price.hardware in gpus()
        assert "@" in price.source
        assert price.read_on == "2026-11-22"
        assert price.kind in ("marketplace", "on-demand", "spot")
        assert 0.1 < price.usd_per_gpu_hour < 10


def test_a_price_is_of_the_machine_and_per_device_its_share() -> None:
    (pair,) = [price for price in gpu_prices() if price.hardware == "rtx-3090"]
    assert (pair.gpus, pair.usd_per_hour, pair.usd_per_gpu_hour) == (2, 0.33, 0.165)


def test_settings_have_concurrency_context_and_pace() -> None:
    assert len(modelled_decodes()) == 34
    assert len(measured_decodes()) == 130
    first = modelled_decodes()[0]
    assert (first.gpu.name, first.concurrency, first.context, first.ms_per_token) == ("a100-sxm", 1, 1512, 12.091)
    light, *_, busy = measured_decodes()[:5]
    request_s = 43344 / 200 * 10.062e-3
    assert light.concurrency == pytest.approx(1.0 * request_s, rel=0.02)  # Little's law
    assert busy.concurrency > 2 * 2734.27 * 15.2807e-3  # the mean over a run of which most is its beginning and end


def test_an_efficiency_per_gpu_is_fitted_from_one_decode() -> None:
    assert all(0.8 < efficiency < 1.2 for efficiency in efficiencies().values())
    assert efficiency_of(gpus()["h100-sxm"]) == pytest.approx(1.061, abs=0.001)
    assert efficiency_of(gpus()["l4"]) == UNTIMED_EFFICIENCY


def test_traffic_out_of_a_cloud_region_has_its_list_price() -> None:
    assert egress_usd_per_gb("aws:us-east-1") == egress_usd_per_gb("AWS:us-east-1 ") == 0.09
    assert egress_usd_per_gb("gcp:us-central1-f") == egress_usd_per_gb("gcp:us-central1") == 0.12
    assert egress_usd_per_gb("mars:olympus-1") is None
    assert egress_usd_per_gb("") is None


def test_an_interval_is_as_wide_as_measurements_show_it() -> None:
    dense, mixture, small = (models()[name] for name in ("qwen3-8b", "qwen3-30b-a3b", "qwen3-1.7b"))
    assert interval_of(gpus()["h200-sxm"], dense) == 0.15
    assert interval_of(gpus()["l4"], dense) == interval_of(gpus()["h200-sxm"], dense, gpus_sharing=2) == 0.25
    assert interval_of(gpus()["h200-sxm"], mixture) == 1.0
    assert interval_of(gpus()["h200-sxm"], small) == 1.4


def test_the_reasoning_models_quantiles_are_those_published() -> None:
    found = lengths_named("deepseek-r1")
    assert found is not None
    assert found.quantile(0.5) == pytest.approx(954, abs=1)
    assert found.quantile(0.99) == pytest.approx(14_901, rel=0.001)


def test_answers_of_a_chat_and_of_code_are_short() -> None:
    means = {}
    for name in LENGTH_NAMES:
        found = lengths_named(name)
        assert found is not None
        means[name] = found.mean
    assert means["azure-code"] < means["azure-chat"] < means["deepseek-r1"]


def test_prompts_have_their_own() -> None:
    prompts = lengths_named("azure-code", "input_tokens")
    assert prompts is not None
    assert prompts.mean == pytest.approx(2048, rel=0.01)
    assert lengths_named("unheard-of") is None


def test_steps_agree_with_their_tokens() -> None:
    assert len(step_times()) == 53
    for one in step_times():
        assert one.step_s > 0
        assert one.tokens_per_second > 0
        assert one.hardware in gpus()
        assert one.lora_rank in (None, 16)


def test_a_learner_is_rented_where_it_is_not_taken_back() -> None:
    found = rented_for_long("h100-sxm")
    assert found is not None
    assert (found.kind, found.usd_per_gpu_hour) == ("on-demand", 2.29)
    assert rented_for_long("no-such-gpu") is None


def test_other_prices_name_their_source() -> None:
    for item, per in (("coordinator", "hour"), ("storage", "GB-month")):
        assert other_price(item).usd > 0
        assert other_price(item).per == per
        assert other_price(item).source
    with pytest.raises(KeyError):
        other_price("coffee")
