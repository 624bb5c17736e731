"""The methods' mathematics: arrays in, new arrays out, one module per method.

- :mod:`~fedclust.clustering.fedgwc`: clusters from losses, split during training.
- :mod:`~fedclust.clustering.clust_psi_pfl`: clusters from label counts, before training.
- :mod:`~fedclust.clustering.fmcl`: clusters from a foundation model's prototypes, before training.
- :mod:`~fedclust.clustering.label_prior`: uses label counts without clusters.
- :mod:`~fedclust.clustering.fedgmcc`: clusters from the geometry between client models, every round.
- :mod:`~fedclust.clustering.auto`: one model for all, split where a grouping by the clients' updates
  (:mod:`~fedclust.clustering.proposals`) proves itself.
- :mod:`~fedclust.clustering.placement`: the cluster of a client that joins later.
- :mod:`~fedclust.clustering.haccs`, :mod:`~fedclust.clustering.fedcls`: which clients take part in a round,
  by their labels.
- :mod:`~fedclust.clustering.ifca`: clients choose among k models, every round.
- :mod:`~fedclust.clustering.private_groups`: the same next to one model for all, with differential privacy.
- :mod:`~fedclust.clustering.clove`: clusters from the losses of k models, in the first rounds.
- :mod:`~fedclust.clustering.fesem`: clusters from the distances of client models from k centres, every round.
- :mod:`~fedclust.clustering.fedsoft`: every client is a mixture of k groups.
- :mod:`~fedclust.clustering.fedrc`: the same, of rows; only other labels for alike inputs set clients apart.
- :mod:`~fedclust.clustering.feddrift`: clients whose loss rises go on alone, and models that are alike merge.
- :mod:`~fedclust.clustering.flux`: clusters from moments of a model's latent features, once.
- :mod:`~fedclust.clustering.pacfl`, :mod:`~fedclust.clustering.fecfl`,
  :mod:`~fedclust.clustering.fedclust_weights`: baselines that cluster once, by distances of subspaces, mean
  embeddings and last layers.
- :mod:`~fedclust.clustering.cfl`, :mod:`~fedclust.clustering.fl_hc`: baselines that cluster by what training
  changes on each client.

Nothing is imported here, and modules load SciPy, scikit-learn and PyTorch only in the functions that use them
(:mod:`~fedclust.clustering.curve_fitting` apart), so that settings can be checked without them. A module's
public names are those without an underscore.
"""
