"""Place clients that were not there when the clusters were formed."""
