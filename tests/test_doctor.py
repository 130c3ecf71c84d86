"""Doctor looks and changes nothing; what is missing is said together with what stands in for it."""

from __future__ import annotations

import pytest

from streamgraph import doctor


def by_topic() -> dict[str, doctor.Finding]:
    return {finding.topic: finding for finding in doctor.examine()}


def test_versions_and_optional_packages_are_listed() -> None:
    found = by_topic()
    assert {"Python", "torch", "networkx", "pydantic", "PyYAML", "click", "rich", "numpy", "pillow", "safetensors"} <= set(found)


def test_every_topic_stands_once_and_every_missing_thing_has_a_remark() -> None:
    findings = doctor.examine()
    assert len({finding.topic for finding in findings}) == len(findings)
    for finding in findings:
        assert finding.state in (doctor.OK, doctor.INFO, doctor.MISSING)
        assert finding.state != doctor.MISSING or finding.remark, finding.topic


def test_without_cuda_it_says_what_run_does_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    found = by_topic()
    remarks = [found[topic].remark or "" for topic in ("CUDA", "CUDA device") if topic in found]
    assert any("uses the CPU" in remark for remark in remarks)
    assert "streams, normal priority" not in found


def test_too_few_connections_are_remarked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    assert "1 streams" in (by_topic()["CUDA_DEVICE_MAX_CONNECTIONS"].remark or "")
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    assert by_topic()["CUDA_DEVICE_MAX_CONNECTIONS"].remark is None
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS")
    assert "not set" in by_topic()["CUDA_DEVICE_MAX_CONNECTIONS"].value


def test_blocking_launches_are_remarked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    assert "nothing overlaps" in (by_topic()["CUDA_LAUNCH_BLOCKING"].remark or "")


def test_a_missing_optional_package_says_what_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "OPTIONAL", (("no_such_module", "no-such-package", "nothing"),))
    finding = by_topic()["no-such-package"]
    assert finding.state == doctor.MISSING
    assert "nothing" in (finding.remark or "")
