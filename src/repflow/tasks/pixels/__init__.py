"""Pixels: images as sequences, from files, arrays or drawn by rules."""

from repflow.tasks.pixels.images import Images, PixelData
from repflow.tasks.pixels.layout import ORDERS, PixelLayout
from repflow.tasks.pixels.prompts import pixel_prompts
from repflow.tasks.pixels.source import load_images

__all__ = ["ORDERS", "Images", "PixelData", "PixelLayout", "load_images", "pixel_prompts"]
