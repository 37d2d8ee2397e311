"""Pictures that a program draws: leaves, shapes, strokes, noise. No real picture is used.

Imports only `errors` and `utils`.
"""

from steppe.procedural.pictures import PROCESSES as PROCESSES
from steppe.procedural.pictures import Procedural as Procedural
from steppe.procedural.pictures import pictures as pictures
from steppe.procedural.pictures import pictures_with_labels as pictures_with_labels
