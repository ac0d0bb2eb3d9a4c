"""Memory: what do a model's memory gates look like, how sharp are its signals through depth?"""

from repflow.moved import successor

__getattr__ = successor("repflow.studies.memory", "repflow.studies.memory.study")
