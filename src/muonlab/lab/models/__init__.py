"""Networks of the paper and narrower ones like them, by name."""

from muonlab.lab.models.registry import Model as Model
from muonlab.lab.models.registry import build as build
from muonlab.lab.models.registry import describe as describe
from muonlab.lab.models.registry import models as models
