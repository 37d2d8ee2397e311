from steppe.clipping.flat import Flat as Flat
