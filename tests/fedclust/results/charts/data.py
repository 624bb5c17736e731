"""Read back what a chart draws."""

from typing import Any

from fedclust.results.charts.chart import Picture, specification


def layers(chart: Any) -> list[dict[str, Any]]:
    spec = specification(chart.chart if isinstance(chart, Picture) else chart)
    shared, found = spec.get("data"), []
    for panel in spec.get("concat", [spec]):
        for each in panel.get("layer", [panel]):  # layers of the same data share it
            name = (each.get("data") or panel.get("data") or shared)["name"]
            found.append({**each, "data": {"values": spec["datasets"][name]}})
    return found


def rows(chart: Any, mark: str = "line", place: int = 0) -> list[dict[str, Any]]:
    """Return the data of the layer with a mark."""
    found = [
        each
        for each in layers(chart)
        if (each["mark"]["type"] if isinstance(each["mark"], dict) else "") == mark
    ]
    return found[place]["data"]["values"]


def lines(chart: Any) -> dict[str, list[Any]]:
    """Return the values of each line by its name."""
    return {row["line"]: row["y"] for row in rows(chart)}


def marks(chart: Any) -> list[tuple[Any, str]]:
    """Return the dotted lines of curves."""
    return [(row["x"], row["what"]) for row in rows(chart, "rule")]


def names(chart: Any) -> tuple[list[str], list[str]]:
    """Return the names of rows and columns of cells."""
    spec = specification(chart.chart if isinstance(chart, Picture) else chart)
    looked = [each["from"]["data"]["name"] for each in layers(chart)[0]["transform"] if "lookup" in each]
    found = [spec["datasets"][name] for name in looked]
    return [one["row"] for one in found[0]], [one["column"] for one in found[1]]
