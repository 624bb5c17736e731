"""The networks that clients train, and the frozen encoders of FMCL.

Importing this package imports nothing large. Its `options` have the rules of every network and encoder.
"""

from typing import TYPE_CHECKING

from fedclust.support.lazy import lazily

if TYPE_CHECKING:
    from fedclust.models.class_prototypes import ClassPrototypes, cached_prototypes, prototypes
    from fedclust.models.construction import Classifier, build, check_outputs, last_layer, reinitialised
    from fedclust.models.encoders import Encoder, build_encoder
else:
    NAMES = {
        "fedclust.models.class_prototypes": "ClassPrototypes cached_prototypes prototypes",
        "fedclust.models.construction": "Classifier build check_outputs last_layer reinitialised",
        "fedclust.models.encoders": "Encoder build_encoder",
    }
    __getattr__, __dir__, __all__ = lazily(__name__, NAMES)
