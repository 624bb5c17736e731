"""The networks that clients train, and the frozen encoders of FMCL.

Importing this package imports nothing large. Its `options` have the rules of every network and encoder.
"""

from typing import TYPE_CHECKING

from fedclust.support.lazy import lazily

if TYPE_CHECKING:
    from fedclust.models.class_prototypes import (
        ClassPrototypes as ClassPrototypes,
        cached_prototypes as cached_prototypes,
        prototypes as prototypes,
    )
    from fedclust.models.construction import (
        Classifier as Classifier,
        build as build,
        check_outputs as check_outputs,
        last_layer as last_layer,
        reinitialised as reinitialised,
    )
    from fedclust.models.encoders import Encoder as Encoder, build_encoder as build_encoder
else:
    NAMES = {
        "fedclust.models.class_prototypes": "ClassPrototypes cached_prototypes prototypes",
        "fedclust.models.construction": "Classifier build check_outputs last_layer reinitialised",
        "fedclust.models.encoders": "Encoder build_encoder",
    }
    __getattr__, __dir__, __all__ = lazily(__name__, NAMES)
