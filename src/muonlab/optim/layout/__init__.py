"""Who holds a parameter and who orthogonalizes it: the one place where the step meets distribution."""

from muonlab.optim.layout.base import Batch as Batch
from muonlab.optim.layout.base import Layout as Layout
from muonlab.optim.layout.local import Local as Local
from muonlab.optim.layout.placement import layout_of as layout_of
