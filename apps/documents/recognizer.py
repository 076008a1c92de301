"""`Recognizer`: recognizes lines of text with the model files of rapidocr-onnxruntime, whose code needs 445 MB for a
page. One model finds text in a reduced picture (Liao et al., "Real-time Scene Text Detection with Differentiable
Binarization", 2020), the other recognizes each line (PP-OCRv4). Both run with one thread and without an arena. Lines
must be level."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_LONG_SIDE, _MOST_PIXELS = 640, 640 * 480
"""Pixels of the longer side of the finder's input, and of the whole, with which its memory grows."""

_STEP = 32

_TEXT = 0.3
_SURE = 0.5

_GROWN = 1.6  # Found lines are too thin, and grow by this factor times their area over their circumference.
_HEIGHT = 48
_WIDEST = 2_400

_LEGIBLE = 0.5

_MEAN, _DEVIATION = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)

Picture = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Read:
    text: str
    left: int
    top: int
    right: int
    bottom: int


class Recognizer:
    """The two open models. Not thread-safe."""

    def __init__(self, finder: Path, reader: Path) -> None:
        self._finder = _session(finder)
        self._reader = _session(reader)
        characters = self._reader.get_modelmeta().custom_metadata_map["character"].splitlines()
        self._characters = ["", *characters, " "]

    def read(self, picture: Picture) -> list[Read]:
        """The lines of a picture [height, width, 3] (RGB), from top to bottom, then from left to right."""
        found: list[Read] = []
        for left, top, right, bottom in self._boxes(picture):
            text = self._line(picture[top:bottom, left:right])
            if text:
                found.append(Read(text, left, top, right, bottom))
        return _in_order(found)

    def _boxes(self, picture: Picture) -> Iterator[tuple[int, int, int, int]]:
        height, width = picture.shape[:2]
        scale = min(1.0, _LONG_SIDE / max(height, width), (_MOST_PIXELS / (height * width)) ** 0.5)
        small = _resized(picture, max(_STEP, _multiple(height * scale)), max(_STEP, _multiple(width * scale)))
        values = (small.astype(np.float32) / 255 - _MEAN) / _DEVIATION
        (found,) = self._finder.run(None, {self._finder.get_inputs()[0].name: values.transpose(2, 0, 1)[None]})
        likely = found[0, 0]
        down, across = height / likely.shape[0], width / likely.shape[1]
        for left, top, right, bottom in components(likely > _TEXT):
            if min(right - left, bottom - top) < 2 or likely[top:bottom, left:right].max() < _SURE:
                continue
            grown = _GROWN * (right - left) * (bottom - top) / (2 * (right - left + bottom - top))
            yield (
                max(0, int((left - grown) * across)), max(0, int((top - grown) * down)),
                min(width, int((right + grown) * across) + 1), min(height, int((bottom + grown) * down) + 1),
            )  # fmt: skip

    def _line(self, cut: Picture) -> str:
        width = min(_WIDEST, max(_HEIGHT // 2, round(cut.shape[1] * _HEIGHT / cut.shape[0])))
        values = _resized(cut, _HEIGHT, width).astype(np.float32) / 127.5 - 1
        values = values[:, :, ::-1].transpose(2, 0, 1)[None]  # this model was trained on BGR
        (scores,) = self._reader.run(None, {self._reader.get_inputs()[0].name: np.ascontiguousarray(values)})
        best = scores[0].argmax(1)
        kept = (best != 0) & (best != np.concatenate(([0], best[:-1])))  # drop blanks and repetitions
        if not kept.any() or scores[0].max(1)[kept].mean() < _LEGIBLE:
            return ""
        return "".join(self._characters[index] for index in best[kept]).strip()


def components(mask: npt.NDArray[np.bool_]) -> list[tuple[int, int, int, int]]:
    """Boxes of the regions of a mask [height, width] that are connected by sides or corners: (left, top, right,
    bottom), right and bottom exclusive."""
    boxes: list[list[int]] = []
    owner: list[int] = []

    def root(at: int) -> int:
        while owner[at] != at:
            owner[at] = owner[owner[at]]
            at = owner[at]
        return at

    before: list[tuple[int, int, int]] = []
    for row, line in enumerate(mask):
        edges = np.flatnonzero(np.diff(np.concatenate(([0], line.view(np.int8), [0]))))
        here: list[tuple[int, int, int]] = []
        for left, right in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            touched = [root(number) for start, end, number in before if start <= right and left <= end]
            if touched:
                number = min(touched)
                for other in touched:
                    owner[other] = number
                    box, joined = boxes[number], boxes[other]
                    boxes[number] = [min(box[0], joined[0]), min(box[1], joined[1]), max(box[2], joined[2]), row + 1]
            else:
                number = len(owner)
                owner.append(number)
                boxes.append([left, row, right, row + 1])
            box = boxes[number]
            boxes[number] = [min(box[0], left), box[1], max(box[2], right), row + 1]
            here.append((left, right, number))
        before = here
    return [(box[0], box[1], box[2], box[3]) for at, box in enumerate(boxes) if root(at) == at]


def _in_order(lines: list[Read]) -> list[Read]:
    rows: list[list[Read]] = []
    for line in sorted(lines, key=lambda line: line.top + line.bottom):
        middle = (line.top + line.bottom) / 2
        if rows and rows[-1][-1].top <= middle <= rows[-1][-1].bottom:
            rows[-1].append(line)
        else:
            rows.append([line])
    return [line for row in rows for line in sorted(row, key=lambda line: line.left)]


def _multiple(size: float) -> int:
    return round(size / _STEP) * _STEP


def _resized(picture: Picture, height: int, width: int) -> Picture:
    from PIL import Image

    return np.asarray(Image.fromarray(picture).resize((width, height), Image.Resampling.BILINEAR))


def _session(path: Path) -> Any:
    from edge.runtimes.onnx_layer import load_onnxruntime

    onnxruntime = load_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
