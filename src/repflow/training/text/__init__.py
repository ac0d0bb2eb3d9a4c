"""Text to train language models and classifiers on: token ids, batches, perplexity, leaks, labelled texts."""

from repflow.training.text.batches import TextBatches
from repflow.training.text.labelled import LabelledTexts, labelled_texts
from repflow.training.text.leak import Leak, measure_leak
from repflow.training.text.mixed import MixedBatches
from repflow.training.text.perplexity import TextLoss, TextPerplexity, text_loss
from repflow.training.text.tokens import TextData, Tokens, encode_documents, text_data

__all__ = [
    "LabelledTexts",
    "Leak",
    "MixedBatches",
    "TextBatches",
    "TextData",
    "TextLoss",
    "TextPerplexity",
    "Tokens",
    "encode_documents",
    "labelled_texts",
    "measure_leak",
    "text_data",
    "text_loss",
]
