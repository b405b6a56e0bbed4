"""The rules of MODS 3.8, as far as our records can touch them: which elements, in which order, with which attributes.

Most of MODS is a choice of elements in any order; a few elements want a sequence. Our own order is stricter.
"""

from __future__ import annotations

import re
from collections import Counter

from lxml import etree

NAMESPACE = "{http://www.loc.gov/mods/v3}"
SCHEMA_LOCATION = "{http://www.w3.org/2001/XMLSchema-instance}schemaLocation"
ANY = re.compile(r".*", re.DOTALL)
NCNAME = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
YES = re.compile("yes")
W3CDTF = re.compile(r"\d{4}(-\d\d(-\d\d(T\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d))?)?)?")


def one_of(*values: str) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, values)))


TOP = {
    "abstract", "accessCondition", "classification", "extension", "genre", "identifier", "language", "location", "name",
    "note", "originInfo", "part", "physicalDescription", "recordInfo", "relatedItem", "subject", "tableOfContents",
    "targetAudience", "titleInfo", "typeOfResource",
}  # fmt: skip
NAMES = one_of("personal", "corporate", "conference", "family")
CODE = one_of("code", "text")
DATE = {"encoding": one_of("w3cdtf", "iso8601", "marc", "temper", "edtf"), "keyDate": YES,
        "qualifier": one_of("approximate", "inferred", "questionable"), "point": one_of("start", "end")}  # fmt: skip
AUTHORITY = {"authority": ANY, "authorityURI": ANY, "valueURI": ANY}
LABELLED = {"displayLabel": ANY, "altRepGroup": ANY, "ID": NCNAME}
TYPED = {**LABELLED, "type": ANY}

# What may stand inside an element, in any order; an element that is not here has text only.
CHILDREN: dict[str, set[str]] = {
    "modsCollection": {"mods"},
    "mods": TOP,
    "relatedItem": TOP,
    "titleInfo": {"title", "subTitle", "partNumber", "partName", "nonSort"},
    "name": {"namePart", "displayForm", "affiliation", "role", "description", "nameIdentifier", "alternativeName"},
    "role": {"roleTerm"},
    "originInfo": {"place", "publisher", "dateIssued", "dateCreated", "dateCaptured", "dateValid", "dateModified",
                   "copyrightDate", "dateOther", "displayDate", "edition", "issuance", "frequency", "agent"},
    "language": {"languageTerm", "scriptTerm"},
    "languageOfCataloging": {"languageTerm", "scriptTerm"},
    "subject": {"topic", "geographic", "temporal", "titleInfo", "name", "geographicCode", "hierarchicalGeographic",
                "cartographics", "occupation", "genre"},
    "physicalDescription": {"form", "reformattingQuality", "internetMediaType", "extent", "digitalOrigin", "note"},
    "location": {"physicalLocation", "shelfLocator", "url", "holdingSimple", "holdingExternal"},
    "recordInfo": {"recordContentSource", "recordCreationDate", "recordChangeDate", "recordIdentifier",
                   "languageOfCataloging", "recordOrigin", "descriptionStandard", "recordInfoNote"},
}  # fmt: skip
NOT_EMPTY = {"modsCollection", "mods", "role", "originInfo", "language", "languageOfCataloging", "physicalDescription",
             "recordInfo"}  # fmt: skip
SEQUENCES = {
    "location": ["physicalLocation", "shelfLocator", "url", "holdingSimple", "holdingExternal"],
    "language": ["languageTerm", "scriptTerm"],
    "languageOfCataloging": ["languageTerm", "scriptTerm"],
}
ATTRIBUTES: dict[str, dict[str, re.Pattern[str]]] = {
    "modsCollection": {SCHEMA_LOCATION: ANY},
    "mods": {SCHEMA_LOCATION: ANY, "ID": NCNAME, "version": one_of("3.8")},
    "titleInfo": {**LABELLED, "type": one_of("abbreviated", "translated", "alternative", "uniform")},
    "name": {**LABELLED, **AUTHORITY, "type": NAMES},
    "namePart": {"type": one_of("date", "family", "given", "termsOfAddress")},
    "roleTerm": {**AUTHORITY, "type": CODE},
    "typeOfResource": {**LABELLED, "collection": YES, "manuscript": YES},
    "dateCreated": DATE,
    "recordCreationDate": DATE,
    "temporal": {**DATE, **AUTHORITY},
    "languageTerm": {**AUTHORITY, "type": CODE},
    "abstract": TYPED,
    "note": TYPED,
    "identifier": {**TYPED, "invalid": YES},
    "accessCondition": TYPED,
    "relatedItem": {**LABELLED, "type": one_of("preceding", "succeeding", "original", "host", "constituent", "series",
                    "otherVersion", "otherFormat", "isReferencedBy", "references", "reviewOf")},
    "physicalLocation": {**AUTHORITY, "displayLabel": ANY, "type": ANY},
    "url": {"displayLabel": ANY, "note": ANY, "dateLastAccessed": ANY, "usage": one_of("primary display", "primary"),
            "access": one_of("preview", "raw object", "object in context")},
    "recordIdentifier": {"source": ANY},
    "topic": AUTHORITY, "geographic": AUTHORITY, "descriptionStandard": AUTHORITY, "recordContentSource": AUTHORITY,
    "subject": {**LABELLED, **AUTHORITY},
}  # fmt: skip
KNOWN = set(CHILDREN) | set(ATTRIBUTES) | {child for children in CHILDREN.values() for child in children}

# The order of our own records; a record in a collection ends with one more note.
OURS = ["titleInfo", "name", "typeOfResource", "originInfo", "language", "abstract", "note", "subject", "relatedItem",
        "identifier", "location", "accessCondition", "recordInfo"]  # fmt: skip


def breaches(root: etree._Element) -> list[str]:
    """What is against the rules, with where it is."""
    found = [breach for element in root.iter(etree.Element) for breach in _breaches(element)]
    ids = Counter(element.get("ID") for element in root.iter(etree.Element) if element.get("ID"))
    found += [f"the ID {id_} is there {times} times" for id_, times in ids.items() if times > 1]
    if root.tag not in {f"{NAMESPACE}mods", f"{NAMESPACE}modsCollection"}:
        found.append(f"the root is {root.tag}")
    if next(root.iter(etree.Comment, etree.ProcessingInstruction), None) is not None:
        found.append("comments or instructions")
    return found


def _breaches(element: etree._Element) -> list[str]:
    tag = element.tag.removeprefix(NAMESPACE)
    children = [child.tag.removeprefix(NAMESPACE) for child in element.iterchildren(etree.Element)]
    where = f"{tag} (line {element.sourceline})"
    found = [] if element.tag.startswith(NAMESPACE) and tag in KNOWN else [f"{where}: unknown"]
    found += [f"{where}: {child} inside" for child in children if child not in CHILDREN.get(tag, set())]
    if children and ((element.text or "").strip() or any((child.tail or "").strip() for child in element)):
        found.append(f"{where}: text between elements")
    if tag in CHILDREN and not children and (tag in NOT_EMPTY or (element.text or "").strip()):
        found.append(f"{where}: empty, or with text")
    found += _attribute_breaches(element, tag, where)
    order = SEQUENCES.get(tag) or (OURS if tag == "mods" else None)
    if order:
        found += _order_breaches(children, order, where)
    return found


def _attribute_breaches(element: etree._Element, tag: str, where: str) -> list[str]:
    allowed = ATTRIBUTES.get(tag, {})
    found = []
    for name, value in element.attrib.items():
        if name not in allowed or not allowed[name].fullmatch(value):
            found.append(f"{where}: {name}={value!r}")
    if element.get("encoding") == "w3cdtf" and not W3CDTF.fullmatch(element.text or ""):
        found.append(f"{where}: {element.text!r} is no date")
    return found


def _order_breaches(children: list[str], order: list[str], where: str) -> list[str]:
    places = [order.index(child) for child in children if child in order]
    if order is OURS and children and children[-1] == "note":
        places.pop()  # the position in the tree
    return [] if places == sorted(places) else [f"{where}: in the order {children}"]
