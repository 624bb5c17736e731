"""Charts of papers' tables and figures: ours next to what they publish."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from fedclust.results.charts import Line, curves
from fedclust.results.charts.chart import COLOURS, GREY, data_of
from fedclust.results.saved_run import SavedRun

MeanAndSpread = tuple[float, float]
_KINDS = alt.Scale(domain=["ours", "published"], range=[*COLOURS[:2]])


def loss_per_round(panels: Mapping[str, Mapping[str, SavedRun]]) -> alt.ConcatChart | None:
    """Draw the loss on clients' test parts over the rounds, a panel per setting and a line per method.

    Source: FedGMCC, Figure 3. With several models, it is the mean over all clients' test rows of the loss of
    the model that each client has. None if no round of any run was evaluated.
    """
    names = list(dict.fromkeys(name for runs in panels.values() for name in runs))
    charts = []
    for title, runs in panels.items():
        found = {name: run.series("test_loss") for name, run in runs.items()}
        lines = [Line(name, *series) for name, series in found.items() if series[0].size]
        if lines:
            charts.append(
                curves(lines, "round", "test loss, nats", names=names).properties(title=title, width=260)
            )
    return alt.concat(*charts, columns=3).resolve_scale(y="shared") if charts else None


def _rows(figures: Mapping[str, MeanAndSpread], by: str) -> list[dict[str, Any]]:
    return [
        {"row": row, "x": mean, "low": mean - spread, "high": mean + spread, "by": by}
        for row, (mean, spread) in figures.items()
    ]


def _dots(rows: list[dict[str, Any]], names: Sequence[str], x: str) -> alt.LayerChart:
    base = alt.Chart(data_of(rows)).encode(
        alt.Y("row:N", sort=list(names), title=None), alt.Color("by:N", title=None, scale=_KINDS),
        yOffset=alt.YOffset("by:N", sort=["published", "ours"]),
    )  # fmt: skip
    bars = base.mark_rule().encode(alt.X("low:Q", title=x, scale=alt.Scale(zero=False)), x2="high:Q")
    return bars + base.mark_point(filled=True, size=35).encode(
        alt.X("x:Q", title=x), shape=alt.Shape("by:N", title=None)
    )


def rows_beside_published(
    rows: Sequence[str],
    panels: Sequence[str],
    ours: Sequence[Mapping[str, MeanAndSpread]],
    published: Sequence[Mapping[str, MeanAndSpread]],
    title: str,
    measure: str,
) -> alt.ConcatChart:
    """Draw a table of a paper: a panel per setting, a row per method, ours and the published figure in it.

    `ours` and `published` have for each panel mean and standard deviation by method.
    """
    charts = [
        _dots([*_rows(theirs, "published"), *_rows(own, "ours")], rows, measure).properties(
            title=panel, width=150
        )
        for panel, own, theirs in zip(panels, ours, published, strict=True)
    ]
    return alt.concat(*charts, columns=5, title=f"{title}; bars: standard deviation over seeds")


def levels(
    names: Sequence[str],
    values: Mapping[str, Mapping[str, Sequence[MeanAndSpread]]],
    positions: Mapping[str, Sequence[float]],
    axes_labels: Mapping[str, str],
    title: str,
) -> alt.ConcatChart:
    """Draw measures of heterogeneity over the level of skew, WPSI apart because it has another unit.

    Source: Clust-PSI-PFL, Fig. 3. The first of `names` is in nats, the others are in [0, 1]; `values` are
    mean and standard deviation over seeds at each level, by protocol and measure.
    """
    charts = []
    for chosen, unit in ((names[:1], "WPSI, nats"), (names[1:], "distance, in [0, 1]")):
        for protocol, by_name in values.items():
            lines = [
                Line(name, positions[protocol], [mean for mean, _ in each],
                     [mean - spread for mean, spread in each], [mean + spread for mean, spread in each])
                for name in chosen
                for each in [by_name[name]]
            ]  # fmt: skip
            label = f"{axes_labels[protocol]}: to the left more skewed"
            charts.append(
                curves(lines, label, unit, names=names).properties(title=protocol, width=300, height=180)
            )
    return alt.concat(*charts, columns=len(values), title=title)


def importances(
    features: Sequence[str],
    values: Mapping[str, Mapping[str, Sequence[MeanAndSpread]]],
    fits: Mapping[str, Mapping[str, float]],
    title: str,
) -> alt.ConcatChart:
    """Draw how much each model loses when one of its features is shuffled (Clust-PSI-PFL, Fig. 4).

    By protocol and model, `values` are mean and standard deviation of each feature's importance, and `fits`
    R² on the rows that they are measured on.
    """
    charts = []
    for protocol, by_model in values.items():
        for model, each in by_model.items():
            rows = _rows(dict(zip(features, each, strict=True)), "ours")
            base = alt.Chart(data_of(rows)).encode(alt.Y("row:N", sort=list(features), title=None))
            bars = base.mark_bar(color=COLOURS[0]).encode(alt.X("x:Q", title="loss of R²"))
            spread = base.mark_rule(color=GREY).encode(alt.X("low:Q", title="loss of R²"), x2="high:Q")
            named = f"{protocol}: {model}, R² {fits[protocol][model]:.2f}"
            charts.append((bars + spread).properties(title=named, width=170))
    return alt.concat(*charts, columns=len(next(iter(values.values()))), title=title)


def numbers_of_clusters(
    sizes: Sequence[int],
    ours: Mapping[str, Sequence[MeanAndSpread]],
    published: Mapping[str, Sequence[int]],
    title: str,
) -> alt.ConcatChart:
    """Draw how many clusters the silhouette chooses, by the number of clients (Clust-PSI-PFL, Fig. 6)."""
    named = [str(each) for each in sizes]
    charts = []
    for setting, figures in ours.items():
        rows = _rows(dict(zip(named, figures, strict=True)), "ours")
        if setting in published:
            theirs = [(float(each), 0.0) for each in published[setting]]
            rows = [*_rows(dict(zip(named, theirs, strict=True)), "published"), *rows]
        charts.append(
            _dots(rows, named, "number of clusters τ").properties(title=f"{setting}, by clients K", width=240)
        )
    return alt.concat(*charts, title=title)
