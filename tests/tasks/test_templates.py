"""The templates, against the strings of the specification and of appendix B, typed in here."""

import json
import re

import pytest

from repflow.core.errors import InputError
from repflow.tasks import TaskOptions, make_task
from repflow.tasks.key_value import key_value_text
from repflow.tasks.multi_document import multi_document_text
from repflow.tasks.passages import Passage
from tests.tasks.retrieval_inputs import bytes_encoder

PAIRS = [
    ("7f666c61-573f-4212-a0a9-6f90d487cd4a", "2a1d0ba0-cfe4-4df5-987a-6ee1be2c6ac0"),
    ("a54e2eed-e625-4570-9f74-3624e77d6684", "d1ff29be-4e2a-4208-a182-0cea716be3d4"),
    ("9f4a92b9-5f69-4725-ba1e-403f08dea695", "703a7ce5-f17f-4e6d-b895-5836ba5ec71c"),
]

LIU2024 = (
    "Extract the value corresponding to the specified key in the JSON object below.\n"
    "\n"
    "JSON data:\n"
    '{"7f666c61-573f-4212-a0a9-6f90d487cd4a": "2a1d0ba0-cfe4-4df5-987a-6ee1be2c6ac0",\n'
    ' "a54e2eed-e625-4570-9f74-3624e77d6684": "d1ff29be-4e2a-4208-a182-0cea716be3d4",\n'
    ' "9f4a92b9-5f69-4725-ba1e-403f08dea695": "703a7ce5-f17f-4e6d-b895-5836ba5ec71c"}\n'
    "\n"
    'Key: "a54e2eed-e625-4570-9f74-3624e77d6684"\n'
    "Corresponding value:"
)

PAPER = (
    "Extract the value corresponding to the specified key in the JSON object below.\n"
    "\n"
    "JSON data:\n"
    '{ "7f666c61-573f-4212-a0a9-6f90d487cd4a": "2a1d0ba0-cfe4-4df5-987a-6ee1be2c6ac0",\n'
    '  "a54e2eed-e625-4570-9f74-3624e77d6684": "d1ff29be-4e2a-4208-a182-0cea716be3d4",\n'
    '  "9f4a92b9-5f69-4725-ba1e-403f08dea695": "703a7ce5-f17f-4e6d-b895-5836ba5ec71c",\n'
    "}\n"
    "\n"
    'Key: "a54e2eed-e625-4570-9f74-3624e77d6684"\n'
    "Corresponding value:"
)

MDQA = (
    "Write a high-quality answer for the given question using only the provided search results (some of which might "
    "be irrelevant).\n"
    "\n"
    "Document [1](Title: Asian Americans in science and technology) Prize in physics for discovery of the subatomic\n"
    "Document [2](Title: List of Nobel laureates in Physics) The first Nobel Prize in Physics was awarded in 1901\n"
    "Document [3](Title: Scientist) and pursued through a unique method, was essentially in place.\n"
    "\n"
    "Question: who got the first nobel prize in physics\n"
    "Answer:"
)


def test_key_value_template_of_liu_et_al():
    text = key_value_text(PAIRS, 1)
    assert text == LIU2024
    data = re.search(r"JSON data:\n(.*)\n\nKey", text, re.DOTALL)[1]
    assert list(json.loads(data).items()) == PAIRS


def test_key_value_template_as_the_paper_prints_it():
    text = key_value_text(PAIRS, 1, "paper")
    assert text == PAPER
    with pytest.raises(json.JSONDecodeError):  # a comma stands behind the last pair
        json.loads(re.search(r"JSON data:\n(.*)\n\nKey", text, re.DOTALL)[1])


def test_multi_document_template():
    passages = [
        Passage("Asian Americans in science and technology", "Prize in physics for discovery of the subatomic"),
        Passage("List of Nobel laureates in Physics", "The first Nobel Prize in Physics was awarded in 1901"),
        Passage("Scientist", "and pursued through a unique method, was essentially in place."),
    ]
    assert multi_document_text(passages, "who got the first nobel prize in physics") == MDQA


@pytest.mark.parametrize("format", ["liu2024", "paper"])
def test_the_task_uses_the_template(format):
    prompts = make_task("kvpr", TaskOptions(format=format)).prompts(bytes_encoder(), length=600, samples=4, seed=3)
    for prompt in prompts:
        pairs = re.findall(r'"([0-9a-f-]{36})": "([0-9a-f-]{36})"', prompt.text)
        assert len(pairs) == prompt.items
        assert prompt.text == key_value_text(pairs, prompt.label, format)


def test_the_first_prompt_of_seed_0_stays_as_it_is():
    """Everything a study measured depends on this string; a change of it is a change of every number."""
    prompts = make_task("kvpr", TaskOptions(items=2, index=0)).prompts(bytes_encoder(), length=4000, samples=1, seed=0)
    assert prompts[0].text.splitlines()[3:5] == [
        '{"2516ac85-e2eb-45e3-8cdb-31fe6899a08e": "bee98d4d-f84f-48cd-8699-8b3aec16def4",',
        ' "52eb2ae4-3367-410f-926e-381087c1843c": "5d463640-690f-4ec9-ac85-d6406a331400"}',
    ]
    prompts = make_task("mdqa", TaskOptions(items=2, index=1)).prompts(bytes_encoder(), length=4000, samples=1, seed=0)
    assert prompts[0].key == "what is sold every autumn at the market of fendewick"
    assert "\nDocument [2](Title: Fendewick) " in prompts[0].text


def test_unknown_format():
    with pytest.raises(InputError, match="format liu2024 or paper; got 'papr'; did you mean paper"):
        make_task("kvpr", TaskOptions(format="papr"))
