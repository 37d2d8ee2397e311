from steppe.points.here import Here as Here
from steppe.points.point import Point as Point
from steppe.points.point import Weights as Weights
