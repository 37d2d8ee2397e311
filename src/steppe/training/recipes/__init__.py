"""Default constants by rule, each with its reason.

They are computed from public constants alone: population, ε, δ and the size of the model. Nothing
is read from the records, so choosing costs no privacy.
"""

from steppe.training.recipes.default_averages import BEFOREHAND as BEFOREHAND
from steppe.training.recipes.default_averages import FREE as FREE
from steppe.training.recipes.default_averages import PUBLISHED as PUBLISHED
from steppe.training.recipes.default_averages import averages as averages
from steppe.training.recipes.default_averages import published as published
from steppe.training.recipes.learning_rate import optimizer_for as optimizer_for
from steppe.training.recipes.learning_rate import signal_to_noise as signal_to_noise
from steppe.training.recipes.model_kinds import front_end_of as front_end_of
from steppe.training.recipes.model_kinds import publishes as publishes
from steppe.training.recipes.recipe import Recipe as Recipe
from steppe.training.recipes.recipe import choose as choose
from steppe.training.recipes.recipe import for_model as for_model
