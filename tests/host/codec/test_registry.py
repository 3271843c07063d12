# SPDX-License-Identifier: Apache-2.0
"""Codecs that other packages add by a call (by an entry point: test_third_party), and names with options."""

from __future__ import annotations

import pytest

from hopsum.codec import CODECS, CodecError, make_codec, parse_codec, register_codec
from hopsum.codec.fixed import Fixed
from hopsum.codec.thc import Thc
from hopsum.config import ConfigError, resolve


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
        ("nosuch:bits=2", "codec 'nosuch': one of thc, uhc"),
        ("thc:bits", "'bits' is no OPTION=VALUE, as in thc:bits=2"),
        ("thc:bits=2,", "'' is no OPTION=VALUE"),
        ("thc:bits=2,bits=4", "option bits is there twice"),
    ],
)
def test_a_wrong_spelling_says_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        parse_codec(text)


def test_an_option_is_given_once() -> None:
    with pytest.raises(CodecError, match="codec thc: option bits is there twice"):
        make_codec("thc:bits=2", workers=2, bits=2)


def test_a_name_is_registered_once() -> None:
    register_codec("mine", Mine)
    register_codec("mine", Mine)
    with pytest.raises(CodecError, match="'thc' is registered already"):
        register_codec("thc", Mine)
    assert CODECS["thc"] is not Mine
