from __future__ import annotations

import pytest

from capacity.catalogue.gpus import gpus
from capacity.catalogue.served import efficiencies, efficiency_of, measured_decodes, modelled_decodes
from capacity.model.roofline import UNTIMED_EFFICIENCY


def test_settings_have_concurrency_context_and_pace() -> None:
    assert len(modelled_decodes()) == 34
    assert len(measured_decodes()) == 80
    first = modelled_decodes()[0]
    assert (first.gpu.name, first.concurrency, first.context, first.ms_per_token) == ("a100-sxm", 1, 1512, 12.091)
    busy = measured_decodes()[4]
    assert busy.concurrency == pytest.approx(2734.27 * 15.2807e-3, rel=1e-4)  # Little's law


def test_an_efficiency_per_gpu_is_fitted_from_one_decode() -> None:
    assert all(0.6 < efficiency < 0.9 for efficiency in efficiencies().values())
    assert efficiency_of(gpus()["h100-sxm"]) == pytest.approx(0.749, abs=0.001)
    assert efficiency_of(gpus()["l4"]) == UNTIMED_EFFICIENCY
