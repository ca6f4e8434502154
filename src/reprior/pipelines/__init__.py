"""What is learned about a classifier from held-out rows: calibrator, source, method; the `Pipeline` is the artefact.

The room is not called `pipeline`, because `reprior.pipeline` is the function that makes one.
"""
