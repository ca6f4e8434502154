"""The default estimator: held-out samples and target samples as one regression. Start with `ebls.py`."""
