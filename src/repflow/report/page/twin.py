"""The page as plain values: every number that it shows, without the drawing."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from repflow.report.data.model import Block, Figure, Link, Page, Prompts, Section, Table
from repflow.report.data.text import plain

KINDS = {Figure: "figure", Table: "table", Prompts: "prompts"}


def page_json(page: Page) -> dict[str, Any]:
    """What the page says and shows, in its order; gaps are null.

    >>> page_json(Page("t", "One sentence.", [], [], []))["sentence"]
    'One sentence.'
    """
    content: dict[str, Any] = plain(
        {
            "title": page.title,
            "sentence": page.subtitle,
            "headline": page.headline,
            "cards": [asdict(card) for card in page.cards],
            "models": [asdict(model) for model in page.models],
            "warnings": list(page.warnings),
            "sections": [_section(section) for section in page.sections],
        }
    )
    return content


def _section(section: Section) -> dict[str, Any]:
    return {
        "id": section.id,
        "title": section.title,
        "reading": section.reading,
        "about": section.lead,
        "blocks": [_block(block) | {"shown": section.is_shown(block)} for block in section.blocks],
    }


def _block(block: Block) -> dict[str, Any]:
    head = {"id": block.id, "kind": KINDS.get(type(block), "text"), "title": block.title}
    if isinstance(block, Figure):
        variants = [
            {
                "when": dict(variant.when),
                "reading": variant.reading,
                "alt": variant.alt,
                "basis": variant.basis,
                "note": variant.note,
                "columns": list(variant.columns),
                "rows": [list(row) for row in variant.rows],
            }
            for variant in block.variants
        ]
        return head | {"caption": block.caption, "variants": variants}
    if isinstance(block, Table):
        rows = [[cell.text if isinstance(cell, Link) else cell for cell in row] for row in block.rows]
        return head | {"caption": block.caption, "columns": list(block.columns), "rows": rows}
    if isinstance(block, Prompts):
        return head | {"caption": block.caption, "samples": [asdict(sample) for sample in block.samples]}
    return head | {"paragraphs": list(block.paragraphs)}
