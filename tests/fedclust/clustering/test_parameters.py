"""Settings of the methods: what is out of range is refused (tests/test_startup.py: the modules are light)."""

from importlib import import_module

import pytest
import yaml

from fedclust.clustering import fedgwc, fmcl

AGGLOMERATION = "linkage=ward num_clusters=0 threshold=-1.0 threshold=.nan max_clusters=0 "
GROUPING = AGGLOMERATION + "min_silhouette=1.5 "
# By method, settings with values, as YAML has them, that are out of range.
OUT_OF_RANGE = {
    "auto": "warmup=0 probation=0 finalists=0 min_cluster_size=0 most_asked=1 projection_size=0 "
    "level=0.0 level=1.0 min_gain=-0.1 min_gain=2.0",
    "cfl": "eps_1=0.0 eps_2=-1.0 gamma_max=1.1 min_rounds=-1 min_silhouette=2.0 min_cluster_size=0 "
    "linkage=ward projection=0",
    "clove": "num_clusters=0 clustering_rounds=0 num_starts=0 stable_rounds=0",
    "clust_psi_pfl": "epsilon=0.0 epsilon=1.0 smoothing=laplace max_clusters=1 max_clusters=true "
    "max_clusters=all max_clusters=2.5 num_starts=0",
    "fecfl": GROUPING + "input=x",
    "fedclust_weights": GROUPING,
    "feddrift": "interval=0 delta=0.0 delta=.inf",
    "fedgmcc": "num_inputs=0 steps=-1 learning_rate=0.0 batch_size=0 num_points=3 num_points=20 "
    "connect=loss first_percentile=4.0 percentile_step=-5.0",
    "fedgwc": "kernel_width=0.0 kernel_width=.nan tolerance=-1e-5 max_clusters=1 step_size=0.0 step_size=1.0 "
    "max_davies_bouldin=0.0 patience=0 patience=null min_pair_coverage=1.5 min_cluster_size=0 cohort_size=1 "
    "initial=one change=all compare=both score_on=rows assign_labels=x",
    "fedrc": "num_clusters=0",
    "fedsoft": "num_clusters=0 interval=0 sigma=-0.1 sigma=0.6 proximal=-1.0 proximal=.inf",
    "fesem": "num_clusters=0 num_starts=0",
    "fl_hc": GROUPING + "rounds=0 metric=l3 projection=0",
    "flux": "min_rounds=1 min_gain=-0.1 min_gain=1.5",
    "fmcl": AGGLOMERATION + "alpha=-1.0 beta=0.0 epsilon=0.0",
    "ifca": "num_clusters=0 restarts=0 restart_rounds=0",
    "pacfl": GROUPING + "vectors=0 measure=largest input=x",
    "private_groups": "num_groups=1 warmup=0 spread=0.0 spread=.inf vote_clip=2.5 level=0.6",
}


@pytest.mark.parametrize(
    ("method", "setting"),
    [(method, setting) for method, settings in OUT_OF_RANGE.items() for setting in settings.split()],
)
def test_values_out_of_range_are_refused_by_name_and_value(method: str, setting: str) -> None:
    name, _, text = setting.partition("=")
    value = yaml.safe_load(text)
    with pytest.raises(ValueError, match=f"^{name} must be .*, got ") as error:
        import_module(f"fedclust.clustering.{method}").Parameters(**{name: value})
    assert str(error.value).removesuffix(" and False").endswith((f"got {value}", f"got {value!r}"))


def test_settings_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="num_clusters and threshold must not both be set, got 2 and 0.5"):
        fmcl.Parameters(num_clusters=2, threshold=0.5)
    with pytest.raises(ValueError, match="limit_parts false without cohort_size, got 1 and True"):
        fedgwc.Parameters(limit_parts=True)
