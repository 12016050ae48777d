"""Do a bundle's graph and tokenizer still give the vectors its manifest remembers?"""

from __future__ import annotations

import numpy as np
import onnxruntime as ort

from models.bundle import Bundle
from models.tokenizer import Tokenizer


def golden_cosine(bundle: Bundle) -> float:
    """The lowest cosine of a golden sentence, embedded by ONNX Runtime now, to its vector in the manifest."""
    tokenizer = Tokenizer(bundle.tokenizer_file, max_length=bundle.manifest.max_length)
    ids, mask = tokenizer.pad(tokenizer.encode([golden.text for golden in bundle.manifest.golden]))
    session = ort.InferenceSession(str(bundle.onnx), providers=["CPUExecutionProvider"])
    (embedded,) = session.run(["sentence_embedding"], {"input_ids": ids, "attention_mask": mask})
    remembered = np.array([golden.vector for golden in bundle.manifest.golden], dtype=np.float32)
    return float((embedded * remembered).sum(axis=1).min())
