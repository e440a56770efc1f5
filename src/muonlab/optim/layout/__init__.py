"""Who holds a parameter and who orthogonalizes it: the one place where the step meets distribution."""

from muonlab.optim.layout.base import Batch as Batch
from muonlab.optim.layout.base import Job as Job
from muonlab.optim.layout.base import Layout as Layout
from muonlab.optim.layout.blocks import Block as Block
from muonlab.optim.layout.local import Local as Local
from muonlab.optim.layout.placement import Layouts as Layouts
from muonlab.optim.layout.whole import local as local
from muonlab.optim.layout.whole import placed_like as placed_like
from muonlab.optim.layout.whole import whole as whole
