"""The ids of subjects are what the whole state says of them, after any changes that the registry itself makes."""

import random

from braidlog.registry import changes
from braidlog.registry.errors import RegistryError
from braidlog.registry.registry_state import State
from braidlog.registry.subject_ids import SubjectIds

SEED = 20_261_117
STEPS = 400


def test_ids_are_those_of_the_state() -> None:
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    state, ids, subjects = State(), SubjectIds(), ["a-value", "b-value", "c-key"]
    state.apply([(b'{"keytype":"CONFIG","subject":null,"magic":0}', b'{"compatibilityLevel":"NONE"}')])
    done: set[str] = set()
    for _ in range(STEPS):
        subject, permanent = rng.choice(subjects), rng.random() < 0.5
        try:
            match rng.choice(["register", "register", "version", "subject"]):
                case "register":
                    kind = rng.choice(["int", "long", "string", "bytes", "double"])
                    change = changes.register(state, subject, changes.Wanted(schema=f'"{kind}"'))
                    done.add("register")
                case "version":
                    version = str(rng.randint(1, 6))
                    change = changes.delete_version(state, subject, version, permanent=permanent)
                    done.add(f"version {permanent}")
                case _:
                    change = changes.delete_subject(state, subject, permanent=permanent)
                    done.add(f"subject {permanent}")
        except RegistryError:
            continue
        state.apply(change.entries)
        ids.apply(change.entries)
        for each in subjects:
            assert ids.ids_of(each) == {version.id for version in state.versions(each, deleted=False)}
    assert done == {"register", "version True", "version False", "subject True", "subject False"}
    ids.apply([(b"no json", b"x"), (b'{"keytype":"SCHEMA"}', b"[]")])
