"""Values that records of sources share, such as the categories of one annotation file of many tars.

In memory every record has its values. In manifest.json each is in the first record that has it, and
the others have the name of that source, under AS_IN: docs/format.md, "Manifest". A thousand tars of
LVIS would else repeat its 1,203 categories a thousand times.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from sa1bpack.format.arrays import canonical_json

# Of a record of a source: what the packer keeps of the records of its images.
RECORDS = "records"
# In that: key of a value → name of an earlier source, whose records have the value.
AS_IN = "as_in"
# What may be shared: values of annotation files in COCO's form.
SHARED_VALUES = ("info", "licenses", "categories")


def stored_once(sources: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Records of sources as manifest.json has them: without the values that earlier ones have."""
    first_with: dict[str, list[tuple[Any, str]]] = {key: [] for key in SHARED_VALUES}
    stored = []
    for source in sources:
        records = source.get(RECORDS)
        if not isinstance(records, dict):
            stored.append(dict(source))
            continue
        kept = {}
        as_in = {}
        for key, value in records.items():
            name = None
            if key in first_with:
                name = _name_of_equal(value, first_with[key])
            if name is not None:
                as_in[key] = name
                continue
            kept[key] = value
            if key in first_with and isinstance(source.get("name"), str):
                first_with[key].append((value, source["name"]))
        if as_in:
            kept[AS_IN] = as_in
        stored.append({**source, RECORDS: kept})
    return tuple(stored)


def _name_of_equal(value: Any, values: Iterable[tuple[Any, str]]) -> str | None:
    """The name beside the first value that is equal; None if there is none."""
    for other, name in values:
        # 1, 1.0 and True are equal, but not the same JSON.
        if value is other:
            return name
        if value == other and canonical_json(value) == canonical_json(other):
            return name
    return None


def with_shared_values(sources: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Records of sources that each have their values, of those in a manifest.json.

    Equal values are one object. What names no earlier source stays as it is.
    """
    whole: dict[str, dict[str, Any]] = {}
    read = []
    for source in sources:
        record = dict(source)
        records = record.get(RECORDS)
        if isinstance(records, dict) and isinstance(records.get(AS_IN), dict):
            records = dict(records)
            unknown = {}
            for key, name in records.pop(AS_IN).items():
                values = whole.get(name, {}) if isinstance(name, str) else {}
                if key in values and key not in records:
                    records[key] = values[key]
                else:
                    unknown[key] = name
            if unknown:
                records[AS_IN] = unknown
            record[RECORDS] = records
        if isinstance(records, dict) and isinstance(record.get("name"), str):
            whole.setdefault(record["name"], records)
        read.append(record)
    return tuple(read)
