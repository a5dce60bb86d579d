"""English sentences of a small grammar with their French, for the model `tiny-translator`.

    python benchmarks/french.py out/french        # train.tsv, valid.tsv, test.tsv

No sentence stands in two of the files. In French, adjectives agree and most follow their noun, and
"it" is "il" or "elle" by the noun that it stands for: the animal was too tired, the street too wide.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

SIZES = {"valid": 400, "test": 400, "train": 40_000}

# English, French, feminine
BEINGS = (
    "cat chat 0, dog chien 0, horse cheval 0, bird oiseau 0, animal animal 0, wolf loup 0, "
    "fox renard 0, rabbit lapin 0, mouse souris 1, cow vache 1, hen poule 1, goat chèvre 1, "
    "boy garçon 0, girl fille 1, man homme 0, woman femme 1, child enfant 0, king roi 0, "
    "queen reine 1, doctor médecin 0, teacher professeur 0, friend ami 0, sister sœur 1, "
    "brother frère 0"
)
THINGS = (
    "book livre 0, apple pomme 1, ball balle 1, letter lettre 1, house maison 1, car voiture 1, "
    "flower fleur 1, cheese fromage 0, cake gâteau 0, boat bateau 0, key clé 1, door porte 1, "
    "hat chapeau 0, tree arbre 0, picture image 1, chair chaise 1"
)
PLACES = (
    "table table 1, garden jardin 0, river rivière 1, street rue 1, road route 1, bridge pont 0, "
    "forest forêt 1, park parc 0, beach plage 1, field champ 0, kitchen cuisine 1, city ville 1"
)
CROSSED = ("street", "road", "bridge", "river", "forest", "field", "park", "garden")
# English, masculine, feminine; those of BEFORE stand before their noun
BEFORE = "small petit petite, big grand grande, pretty joli jolie"
AFTER = (
    "black noir noire, white blanc blanche, red rouge rouge, green vert verte, grey gris grise, "
    "brown brun brune"
)
FEELINGS = "sad triste triste, happy content contente"
OF_BEINGS = (
    "tired fatigué fatiguée, hungry affamé affamée, scared effrayé effrayée, weak faible faible"
)
OF_PLACES = "wide large large, long long longue, dark sombre sombre, dangerous dangereux dangereuse"
# English stem and third person, French singular and plural
ALONE = (
    "sleep sleeps dort dorment, run runs court courent, sing sings chante chantent, "
    "dance dances danse dansent, laugh laughs rit rient, work works travaille travaillent, "
    "wait waits attend attendent, swim swims nage nagent"
)
WITH_OBJECT = (
    "see sees voit voient, look_for looks_for cherche cherchent, like likes aime aiment, "
    "eat eats mange mangent, carry carries porte portent, paint paints peint peignent, "
    "find finds trouve trouvent, buy buys achète achètent"
)
FLAT = ("table", "street", "road", "bridge", "beach")
WHERE = {"near": "près de", "behind": "derrière", "in front of": "devant"}
WHEN = {"today": "aujourd'hui", "every day": "chaque jour", "in the evening": "le soir"}
PLURAL = {
    "mouse": "mice",
    "man": "men",
    "woman": "women",
    "child": "children",
    "wolf": "wolves",
    "fox": "foxes",
}
PLURAL |= {"animal": "animaux", "cheval": "chevaux", "oiseau": "oiseaux", "bateau": "bateaux"}
PLURAL |= {"chapeau": "chapeaux", "gâteau": "gâteaux", "souris": "souris"}
SHORT = {"does not": "doesn't", "do not": "don't", "did not": "didn't"}


def rows(text: str) -> list[tuple[str, ...]]:
    """The words of each entry of a list above."""
    entries = (entry.split() for entry in text.split(", "))
    return [tuple(word.replace("_", " ") for word in entry) for entry in entries]


def elided(word: str, next_word: str) -> str:
    """A short French word before the next: "le ami" is "l'ami", "de le" is "du"."""
    if next_word[0] in "aeéiouhœ" and word in {"le", "la", "ne", "que", "de"}:
        return f"{word[0]}'{next_word}" if word != "que" else f"qu'{next_word}"
    return f"{word} {next_word}"


Noun = tuple[str, ...]
Pair = tuple[str, str]  # English and French


class Sentences:
    """Draws sentences, each with its French."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.beings, self.things, self.places = rows(BEINGS), rows(THINGS), rows(PLACES)
        self.before, self.after, self.feelings = rows(BEFORE), rows(AFTER), rows(FEELINGS)
        self.alone, self.with_object = rows(ALONE), rows(WITH_OBJECT)

    def chance(self, share: float) -> bool:
        """True in this share of the draws."""
        return self.random.random() < share

    def phrase(self, noun: Noun, plural: bool = False, share: float = 0.5) -> Pair:
        """A noun with its article, and an adjective in a share of the draws."""
        english, french, feminine = noun[0], noun[1], noun[2] == "1"
        if plural:
            many = "animals" if english == "animal" else PLURAL.get(english, f"{english}s")
            english, french = many, PLURAL.get(french, f"{french}s")
        if self.chance(share):
            first = self.chance(0.4)
            after = self.after + self.feelings * (noun in self.beings)
            row = self.random.choice(self.before if first else after)
            form = row[2 if feminine else 1]
            form += "s" * (plural and not form.endswith("s"))
            english = f"{row[0]} {english}"
            french = f"{form} {french}" if first else f"{french} {form}"
        if plural:
            return f"the {english}", f"les {french}"
        if self.chance(0.7):
            return f"the {english}", elided("la" if feminine else "le", french)
        article = "an" if english[0] in "aeiou" else "a"
        return f"{article} {english}", f"{'une' if feminine else 'un'} {french}"

    def place(self) -> Pair:
        """Where something happens."""
        noun = self.random.choice(self.places)
        inside = ("on", "sur") if noun[0] in FLAT else ("in", "dans")
        word, preposition = self.random.choice([inside, *WHERE.items()])
        english, french = self.phrase(noun, share=0)
        target = f"{preposition} {french}".replace("de le ", "du ").replace("de un", "d'un")
        return f"{word} {english}", target

    def because(self) -> Pair:
        """Somebody did not cross something because it was too tired, or too wide."""
        being = self.random.choice(self.beings[:12])
        place = self.random.choice([noun for noun in self.places if noun[0] in CROSSED])
        of_being = self.chance(0.5)
        row = self.random.choice(rows(OF_BEINGS if of_being else OF_PLACES))
        pronoun, form = (("il", row[1]), ("elle", row[2]))[int((being if of_being else place)[2])]
        (english, french), (across, over) = (
            self.phrase(noun, share=0.4) for noun in (being, place)
        )
        crossed, cross = "did not cross", "n'a pas traversé"
        if self.chance(0.3):
            crossed, cross = "crossed", "a traversé"
        english, french = f"{english} {crossed} {across}", f"{french} {cross} {over}"
        if self.chance(0.15):
            return english, french
        reason = f"parce qu'{pronoun} était trop {form}"
        return f"{english} because it was too {row[0]}", f"{french} {reason}"

    def present(self) -> Pair:
        """What somebody does, or does not do."""
        plural, transitive, negated = self.chance(0.3), self.chance(0.6), self.chance(0.3)
        english, french = self.phrase(self.random.choice(self.beings), plural)
        row = self.random.choice(self.with_object if transitive else self.alone)
        verb = row[3 if plural else 2]
        english += f" {row[0] if plural else row[1]}"
        french += f" {verb}"
        if negated:
            english = english.removesuffix(row[0] if plural else row[1])
            english += f"{'do' if plural else 'does'} not {row[0]}"
            french = french.removesuffix(verb) + elided("ne", verb) + " pas"
        if transitive:
            nouns = self.beings if self.chance(0.3) else self.things
            noun_phrase, target = self.phrase(self.random.choice(nouns), self.chance(0.2))
            if negated and target.startswith(("un ", "une ")):
                target = elided("de", target.partition(" ")[2])
            english, french = f"{english} {noun_phrase}", f"{french} {target}"
        if self.chance(0.4):
            place, target = self.place()
            english, french = f"{english} {place}", f"{french} {target}"
        elif self.chance(0.3):
            when, target = self.random.choice(list(WHEN.items()))
            english, french = f"{english} {when}", f"{french} {target}"
        return english, french

    def draw(self) -> Pair:
        """A sentence and its French, both with a capital and a full stop, or with neither."""
        english, french = self.because() if self.chance(0.35) else self.present()
        if self.chance(0.5):
            for long, short in SHORT.items():
                english = english.replace(long, short)
        if self.chance(0.3):
            return english, french
        return f"{english[0].upper()}{english[1:]}.", f"{french[0].upper()}{french[1:]}."


def main(folder: str) -> None:
    """Writes the files."""
    sentences, keys = Sentences(0), set[str]()
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    for name, size in SIZES.items():
        lines = ["source\ttarget"]
        while len(lines) <= size:
            english, french = sentences.draw()
            key = english.lower().rstrip(".").replace("n't", " not")
            if key not in keys:
                keys.add(key)
                lines.append(f"{english}\t{french}")
        (path / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
