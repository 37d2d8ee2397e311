"""The patch front-end: whitened patches beside a dictionary, pooled and whitened once more."""

from steppe.models.patches.front import Patches as Patches
from steppe.models.patches.linear import PatchesLinear as PatchesLinear
from steppe.models.patches.linear import patches_linear as patches_linear
from steppe.models.patches.sizes import takes_patches as takes_patches
