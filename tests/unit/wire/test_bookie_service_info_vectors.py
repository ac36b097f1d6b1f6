"""What a bookie registers, against the Java product (tests/vectors/bookie_service_info.json)."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.errors import CorruptMetadataError, MisuseError
from quire.wire import bookie_service_info
from quire.wire.bookie_service_info import BookieServiceInfo, Endpoint, check_bookie_id

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "bookie_service_info.json").read_text())


def info_of(fields):
    endpoints = tuple(
        Endpoint(e["id"], e["port"], e["host"], e["protocol"], tuple(e["auth"]), tuple(e["extensions"]))
        for e in fields["endpoints"]
    )
    return BookieServiceInfo(endpoints, tuple(fields["properties"].items()))


@pytest.mark.parametrize("case", VECTORS["cases"])
def test_bytes_and_meaning_equal_javas(case):
    data = bytes.fromhex(case["serialized_hex"])
    assert bookie_service_info.parse(data, "127.0.0.1:3181") == info_of(
        case["parsed_for_bookie_127.0.0.1:3181"]
    )
    if "info" in case:
        assert bookie_service_info.serialize(info_of(case["info"])) == data


@pytest.mark.parametrize("case", VECTORS["bookie_id_validity"], ids=lambda case: case["id"] or "empty")
def test_bookie_ids_are_those_of_java(case):
    if case["result"] == "ok":
        assert check_bookie_id(case["id"]) == case["id"]
    else:
        with pytest.raises(MisuseError):
            check_bookie_id(case["id"])


def test_our_registration_names_the_native_port_beside_what_java_reads():
    value = bookie_service_info.native_property(3181, 1)
    info = BookieServiceInfo(
        (Endpoint("bookie", 3181, "127.0.0.1", bookie_service_info.BOOKIE_RPC),),
        ((bookie_service_info.NATIVE_PROPERTY, value),),
    )
    back = bookie_service_info.parse(bookie_service_info.serialize(info), "b1.k7f3q")
    assert back == info
    assert back.bookie_rpc == info.endpoints[0]
    assert bookie_service_info.parse_native_property(dict(back.properties)["quire.native"]) == (3181, 1)


@pytest.mark.parametrize("value", ["", "3181", "3181/", "/1", "x/1", "70000/1", "0/1", "3181/1/2"])
def test_another_form_of_the_native_property_is_not_understood(value):
    assert bookie_service_info.parse_native_property(value) is None


def test_an_empty_registration_needs_an_address_as_id():
    with pytest.raises(CorruptMetadataError, match="bookie b1 "):
        bookie_service_info.parse(b"", "b1")


@given(st.binary(min_size=1, max_size=60))
def test_noise_is_corrupt_and_nothing_else(noise):
    with suppress(CorruptMetadataError):
        bookie_service_info.parse(noise, "b1")
