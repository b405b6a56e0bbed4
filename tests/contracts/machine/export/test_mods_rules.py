"""The checker of MODS that the other tests rely on finds what is wrong."""

from __future__ import annotations

import pytest
from lxml import etree
from tests.contracts.machine.export.mods_rules import breaches

RECORD = '<mods xmlns="http://www.loc.gov/mods/v3">{}</mods>'


@pytest.mark.parametrize(
    ("inside", "breach"),
    [
        ("", "empty"),
        ("<title>x</title>", "title inside"),
        ("<titel>x</titel>", "unknown"),
        ('<title xmlns="">x</title>', "unknown"),
        ('<titleInfo type="better"><title>x</title></titleInfo>', "type='better'"),
        ("<titleInfo>x<title>y</title></titleInfo>", "text between elements"),
        ('<note colour="red">x</note>', "colour='red'"),
        ("<note>x<title>y</title></note>", "title inside"),
        ("<abstract>x</abstract><titleInfo><title>y</title></titleInfo>", "in the order"),
        ("<location><url>u</url><physicalLocation>p</physicalLocation></location>", "in the order"),
        ('<location><url usage="secondary">u</url></location>', "usage='secondary'"),
        ('<relatedItem type="friend"/>', "type='friend'"),
        ("<originInfo/>", "empty"),
        ('<originInfo><dateCreated encoding="w3cdtf">soon</dateCreated></originInfo>', "'soon' is no date"),
        ('<originInfo><dateCreated keyDate="no">1900</dateCreated></originInfo>', "keyDate='no'"),
        ('<name type="ship"><namePart>x</namePart></name>', "type='ship'"),
        ('<abstract ID="a b">x</abstract>', "ID='a b'"),
        ('<abstract ID="a">x</abstract><note ID="a">y</note>', "the ID a is there 2 times"),
        ("<!-- x --><abstract>x</abstract>", "comments"),
    ],
)
def test_a_breach_is_found(inside: str, breach: str) -> None:
    found = breaches(etree.fromstring(RECORD.format(inside)))

    assert any(breach in one for one in found), found


def test_a_collection_must_hold_records() -> None:
    assert breaches(etree.fromstring('<modsCollection xmlns="http://www.loc.gov/mods/v3"/>'))
    assert breaches(etree.fromstring("<mods><abstract>x</abstract></mods>"))
