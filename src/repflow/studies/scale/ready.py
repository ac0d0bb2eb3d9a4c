"""Imports that every worker needs, for the process that workers are forked from: nothing here may start CUDA."""

import repflow.capture.run
import repflow.models
import repflow.studies.scale.worker  # noqa: F401
