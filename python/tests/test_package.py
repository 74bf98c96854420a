"""Tests of the installed package: `.ci/wheel` runs them in a fresh environment."""

import os

import pytest

import onboard

FIXTURES = os.path.join(os.path.dirname(__file__), "../../fixtures")
LFM2 = os.path.join(FIXTURES, "lfm2")


def test_parity(parity_check):
    report = parity_check(LFM2, dtypes=["f32"], schedules=False)
    assert report.verdict == "pass"
    assert [(run.dtype, run.agrees) for run in report.runs] == [("f32", True)]


def test_a_model_is_added():
    added = onboard.add_model(LFM2)
    assert added.proven and added.spec == "lfm2" and added.architecture == "Lfm2ForCausalLM"


def test_a_difference_is_a_report():
    options = ["--set", "states.conv.dtype=bf16", "--allow-dtype-mismatch"]
    report = onboard.check(LFM2, dtypes=["f16"], schedules=False, options=options)
    assert not report.agrees and report.verdict == "fail"
    assert not report.runs[0].agrees and report.runs[0].first_divergence
    assert "first divergence: state conv of model.layers.0" in report.summary


def test_a_conversion_is_verified(tmp_path):
    output = tmp_path / "llama.gguf"
    onboard.convert(os.path.join(FIXTURES, "llama_256"), "gguf:q8_0", output)
    assert onboard.verify(output)
    with pytest.raises(onboard.OnboardError, match="--force"):
        onboard.convert(os.path.join(FIXTURES, "llama_256"), "gguf:q8_0", output)
    damaged = bytearray(output.read_bytes())
    damaged[-1] ^= 1
    output.write_bytes(damaged)
    assert not onboard.verify(output)


def test_errors_have_the_text_of_the_command(tmp_path):
    with pytest.raises(onboard.OnboardError, match="nowhere"):
        onboard.check(tmp_path / "nowhere")
