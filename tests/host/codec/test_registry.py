# SPDX-License-Identifier: Apache-2.0
"""Codecs that other packages add by a call (by an entry point: test_third_party), and names with options."""

from __future__ import annotations

import contextlib
import inspect

import pytest

import hopsum
from hopsum.codec import CODECS, CodecError, codec_names, make_codec, parse_codec, register_codec
from hopsum.codec.fixed import Fixed
from hopsum.codec.thc import Thc
from hopsum.config import ConfigError, resolve
from hopsum.connection.open_agent import codec_of


@pytest.fixture(autouse=True)
def _restore(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CODECS, "mine", Fixed)
    del CODECS["mine"]


class Mine(Fixed):
    """A codec from outside."""

    name = "mine"


def test_a_registered_codec_is_made_by_name_and_taken_by_the_settings() -> None:
    with pytest.raises(ConfigError, match="codec"):
        resolve({"codec": "mine"}, environment={})
    register_codec("mine", Mine)
    assert resolve({"codec": "mine"}, environment={}).codec == "mine"
    assert type(make_codec("mine", workers=2)) is Mine


def test_a_name_with_options_makes_the_same_codec() -> None:
    spelled = make_codec("thc:bits=2,error_feedback=false", workers=3)
    given = make_codec("thc", workers=3, bits=2, error_feedback=False)
    assert spelled.lookup == given.lookup
    assert isinstance(spelled, Thc)
    assert str(parse_codec("thc:bits=2,code_group=64,error_feedback=true")) == (
        "thc:bits=2,code_group=64,error_feedback=true"
    )
    assert str(parse_codec("fixed")) == "fixed"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nosuch:bits=2", "codec 'nosuch': there are thc, uhc"),
        ("lossles", "codec 'lossles': did you mean lossless?"),
        ("thc:bits", "'bits' is no OPTION=VALUE, as in thc:bits=2"),
        ("thc:bits=2,", "'' is no OPTION=VALUE"),
        ("thc:bits=2,bits=4", "option bits is there twice"),
        ("thc:bits=" + 10_000 * "[", "codec thc: bits='.* is not an integer"),
    ],
)
def test_a_wrong_spelling_says_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        parse_codec(text)


UNKNOWN = [
    ("thc", "result", "its options are bits, result_bits, rounding, .*; did you mean result_bits?"),
    ("uhc", "bitss", "its options are bits, lane_bits; did you mean bits?"),
    ("fixed", "bits", "it has no options$"),
    ("lossless", "gama", "its options are gamma, index, repeats; did you mean gamma?"),
    ("two-shot", "workers", "its options are bits$"),
    ("mine", "kernels", "it has no options$"),
]


@pytest.mark.parametrize(("name", "option", "message"), UNKNOWN)
def test_an_option_that_a_codec_lacks_is_refused_by_name(name: str, option: str, message: str) -> None:
    """With the options that there are, in every place that reads a codec."""
    register_codec("mine", Mine)
    told = rf"codec {name} has no option '{option}': {message}"
    with pytest.raises(CodecError, match=told):
        parse_codec(f"{name}:{option}=4")
    with pytest.raises(ConfigError, match=rf"argument codec: {told}"):
        resolve({"codec": f"{name}:{option}=4"}, environment={})
    with pytest.raises(CodecError, match=told):
        hopsum.connect("memory://unknown?workers=1", codec=name, codec_options={option: 4})
    if option not in ("workers", "kernels"):  # arguments of make_codec, or of what it calls
        with pytest.raises(CodecError, match=told):
            make_codec(name, workers=1, **{option: 4})


def test_every_option_refuses_values_of_other_types() -> None:
    """Not one exception but CodecError, whatever a value is."""
    values = ("x", -1, 0, 2.5, float("nan"), float("inf"), 10**40, True, None, [], {}, [1, "x"], b"x")
    for name in codec_names():
        for option in inspect.signature(CODECS[name]).parameters:
            for value in values:
                with contextlib.suppress(CodecError):
                    resolved = resolve({"codec": name, "codec_options": {option: value}}, environment={})
                    codec_of(resolved, 2)
    for text, message in [
        ("thc:bits=4.0", "codec thc: bits=4.0 is not an integer"),
        ("thc:result_bits=true", "result_bits=True is not an integer"),
        ("thc:rounding=1", "rounding=1 is not text"),
        ("thc:table=1", "table=1 is not a LookupTable"),
        ("thc:error_feedback=False", "error_feedback='False' is not true or false"),
        ("lossless:gamma=x", "codec lossless: gamma='x' is not a number"),
    ]:
        with pytest.raises(CodecError, match=message):
            parse_codec(text)


def test_a_codec_that_takes_any_option_is_given_them() -> None:
    given: list[object] = []

    def make(workers: int, *, kernels: object = None, **options: object) -> Fixed:
        given.append(options)
        return Fixed(workers)

    register_codec("mine", make)
    make_codec("mine:any=1", workers=1, backend="numpy")
    assert {"any": 1} in given


def test_an_option_is_given_once() -> None:
    with pytest.raises(CodecError, match="codec thc: option bits is there twice"):
        make_codec("thc:bits=2", workers=2, bits=2)


def test_a_name_is_registered_once() -> None:
    register_codec("mine", Mine)
    register_codec("mine", Mine)
    with pytest.raises(CodecError, match="'thc' is registered already"):
        register_codec("thc", Mine)
    assert CODECS["thc"] is not Mine
