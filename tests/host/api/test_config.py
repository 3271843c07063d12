# SPDX-License-Identifier: Apache-2.0
"""Sources of settings, their order, and refusals of settings that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hopsum.config import Config, ConfigError, resolve

DOCS = Path(__file__).resolve().parents[3] / "docs" / "reference" / "configuration.md"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text('[hopsum]\nrank = 2\ncodec = "uhc"\ncodec_options = {bits = 8}\ndeadline_s = 7\n')
    return path


def test_defaults() -> None:
    assert resolve(environment={}) == Config()


def test_arguments_come_before_the_file_before_the_environment_before_defaults(file: Path) -> None:
    environment = {
        "HOPSUM_RANK": "4",
        "HOPSUM_CODEC": "fixed",
        "HOPSUM_SEED": "11",
        "HOPSUM_RETRANSMIT_S": "0.25",
        "RANK": "5",
    }
    found = resolve({"rank": 1, "seed": None}, file=file, environment=environment)
    assert (found.rank, found.codec, found.deadline_s) == (1, "uhc", 7)
    assert found.codec_options == {"bits": 8}
    assert (found.seed, found.retransmit_s) == (11, 0.25)
    assert found.backend == "auto"


def test_the_environment_names_the_file(file: Path) -> None:
    assert resolve(environment={"HOPSUM_CONFIG": str(file)}).rank == 2
    other = file.with_name("other.toml")
    other.write_text("[hopsum]\nrank = 3\n")
    assert resolve(file=other, environment={"HOPSUM_CONFIG": str(file)}).rank == 3


def test_kubernetes_variables_for_services_are_no_settings() -> None:
    """Each pod has them of every Service of its namespace, as of hopsum-controller."""
    place = "tcp://10.96.0.7:9600"
    links = {f"HOPSUM_CONTROLLER_{name}": text for name, text in {
        "SERVICE_HOST": "10.96.0.7", "SERVICE_PORT": "9600", "SERVICE_PORT_GRPC": "9600", "PORT": place,
        "PORT_9600_TCP": place, "PORT_9600_TCP_PROTO": "tcp", "PORT_9600_TCP_PORT": "9600",
        "PORT_9600_TCP_ADDR": "10.96.0.7"}.items()}  # fmt: skip
    assert resolve(environment={**links, "HOPSUM_UDP_PORT": "7"}).udp_port == 7
    with pytest.raises(ConfigError, match="upd_port"):
        resolve(environment={"HOPSUM_UPD_PORT": "7"})


@pytest.mark.parametrize("name", ["COMPILED", "COMPARE", "HOST", "NETWORK", "TLS", "CONTROLLER", "ADMIN_TOKEN_FILE"])
def test_variables_that_others_read_are_no_settings(name: str) -> None:
    """They stand beside a worker's settings, so a worker connects all the same."""
    assert resolve(environment={f"HOPSUM_{name}": "0"}) == resolve(environment={})


def test_the_process_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPSUM_SEED", "9")
    assert resolve().seed == 9


@pytest.mark.parametrize(
    ("spelled", "options"),
    [
        ("thc:bits=2", {"bits": 2}),
        ("uhc:bits=8,lane_bits=16", {"bits": 8, "lane_bits": 16}),
        ("thc:error_feedback=false", {"error_feedback": False}),
    ],
)
def test_a_codec_is_spelled_with_its_options(spelled: str, options: dict[str, Any]) -> None:
    for found in (
        resolve({"codec": spelled}, environment={}),
        resolve(environment={"HOPSUM_CODEC": spelled}),
    ):
        assert (found.codec, found.codec_options) == (spelled.partition(":")[0], options)


def test_options_in_two_places_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"codec 'thc:bits=2' names its options, and codec_options says"):
        resolve({"codec": "thc:bits=2", "codec_options": {"bits": 4}}, environment={})


@pytest.mark.parametrize("spelled", ["thc:", "thc:bits", "thc:bits=", "thc:2=bits", "thc:bits=2,bits=2", "thcs:bits=2"])
def test_a_codec_that_is_spelled_wrong_is_refused(spelled: str) -> None:
    with pytest.raises(ConfigError, match=r"argument codec is .*with options as in"):
        resolve({"codec": spelled}, environment={})


@pytest.mark.parametrize(
    ("environment", "rank"),
    [({"RANK": "3"}, 3), ({"RANK": "3", "HOPSUM_RANK": "2"}, 2), ({"RANK": "x", "HOPSUM_RANK": "2"}, 2)],
)
def test_torchruns_rank_counts_least(environment: dict[str, str], rank: int) -> None:
    assert resolve(environment=environment).rank == rank


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("url", "memory://a?workers=1", "memory://a?workers=1"),
        ("threads", "2", 2),
        ("error_feedback", "no", False),
        ("error_feedback", "TRUE", True),
        ("codec_options", "{bits = 8, lane_bits = 16}", {"bits": 8, "lane_bits": 16}),
    ],
)
def test_environment_variables_are_text(name: str, text: str, value: Any) -> None:
    assert getattr(resolve(environment={f"HOPSUM_{name.upper()}": text}), name) == value


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"HOPSUM_RANKS": "1"}, "environment variable HOPSUM_RANKS: there is no setting 'ranks'; did you mean rank?"),
        ({"HOPSUM_RANK": "one"}, "environment variable HOPSUM_RANK is 'one': rank is an integer of 0 to 65535"),
        ({"HOPSUM_RANK": "-1"}, "environment variable HOPSUM_RANK is -1: rank is an integer"),
        ({"RANK": "one"}, "environment variable RANK is 'one': rank is an integer"),
        ({"HOPSUM_THREADS": "0"}, "environment variable HOPSUM_THREADS is 0: threads is an integer of 1 to 256"),
        ({"HOPSUM_DEADLINE_S": "nan"}, "environment variable HOPSUM_DEADLINE_S is nan: deadline_s is a number of"),
        ({"HOPSUM_ERROR_FEEDBACK": "maybe"}, "is 'maybe': error_feedback is true or false"),
        ({"HOPSUM_CODEC_OPTIONS": "bits=8"}, "is 'bits=8': codec_options is a table"),
        ({"HOPSUM_CODEC": "tch"}, 'is \'tch\': codec is "thc" or "uhc" or "fixed" or "lossless"'),
    ],
)
def test_what_does_not_fit_in_the_environment(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        resolve(environment=environment)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dedline_s": 3}, "argument dedline_s: there is no setting 'dedline_s'; did you mean deadline_s?"),
        ({"dedline_s": None}, "argument dedline_s: there is no setting"),
        ({"zzz": 3}, "there is no setting 'zzz'; there are url, rank, codec,"),
        ({"rank": "3"}, "argument rank is '3': rank is an integer"),
        ({"rank": True}, "argument rank is True: rank is an integer"),
        ({"error_feedback": 1}, "argument error_feedback is 1: error_feedback is true or false"),
        ({"retransmit_s": 0}, "argument retransmit_s is 0: retransmit_s is a number of 0.001 to 3600"),
        ({"on_nonfinite": "zero"}, 'argument on_nonfinite is \'zero\': on_nonfinite is "raise" or "skip"'),
    ],
)
def test_what_does_not_fit_in_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        resolve(arguments, environment={})
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[hopsum]\nrnak = "a"\n', "hopsum.rnak: there is no setting 'rnak'; did you mean rank?"),
        ('[hopsum]\nrank = "a"\n', "hopsum.rank is 'a': rank is an integer"),
        ("[hopsun]\nrank = 1\n", "has no table [hopsum]; it has hopsun"),
        ("rank = \n", "cannot be read: Invalid value"),
    ],
)
def test_what_does_not_fit_in_the_file(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "job.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        resolve(file=path, environment={})
    assert str(path) in str(refused.value)
    assert message in str(refused.value)


def test_a_file_that_is_named_has_to_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml cannot be read"):
        resolve(environment={"HOPSUM_CONFIG": str(tmp_path / "none.toml")})
