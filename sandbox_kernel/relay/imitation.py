"""Whether a text looks like the wrapper's own words to a reader, whatever its letters are.

Letters of other alphabets look like Latin ones, marks and invisible characters can stand between them, and
digits can stand in for them. A text is reduced to what a reader sees, and then compared with some tolerance.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_NO_LETTERS: Final = re.compile(r"[\W_]+")
# By the Latin letter that a reader takes them for, after `casefold`. `i` and `l` count as one.
_LOOK_ALIKES: Final = {
    "a": "4@аαɑɐᴀꭺꓮ∀ⲁ",
    "b": "68ьвβƅɓʙъбꮟꓐᏏᏼᖯⲃ",
    "c": "ссϲᴄⲥꮯꓚ",
    "d": "ԁɗɖԃđժꓓᗞᑯᴅꭰδⅆ",
    "e": "3еєёҽɛεꬲəǝɘᴇꭼꓰⲉ℮",
    "h": "һнհʜꮋꓧⲏ",
    "k": "кκқҝҡӄĸƙᴋꮶꓗⲕ",
    "l": "1i|!¡ӏιıіїǀ׀ןוاɩɪʟłɫɭլⲓⵏᛁꓲꓡꮮ∣",
    "n": "пηνɴƞɲŋոռпиꓠⲛחᥒ",
    "o": "0оοσօөøθᴏדסهഠ০०໐๐ჿⲟꓳⵔ○◯∘°〇",
    "r": "гʀɾɼᴦґѓꮢꭱꓣяⲅ",
    "s": "5$ѕꜱʂƽꮪꓢտʃ§",
    "t": "7тτᴛꭲꓔⲧ†",
    "u": "υսʋᴜꓴц",
    "x": "хχ×✕✖ᕁᕽꓫⵝⲭ᙭ҳӽ╳⨯*",
}
_READ_AS: Final = {
    ord(form): letter
    for letter, alike in _LOOK_ALIKES.items()
    for each in alike
    for form in {each, *each.casefold(), *each.upper()}
    if form not in "abcdefghjklmnopqrstuvwxyz" or form == "i"
}
# Of a prompt, after some letters have become eighteen.
MAX_LETTERS: Final = 4096
# What the wrapper says, and how many letters may be other ones, missing or too many.
_OWN_WORDS: Final = (("sandboxkernel", 4), ("runthlscell", 3))


def looks_like_the_wrapper(text: str) -> bool:
    """Whether a reader may take this for a question of the wrapper's own."""
    if any(unicodedata.category(each) in ("Cc", "Cf") and each not in "\n\t" for each in text):
        # It may turn round, move or hide what stands beside it.
        return True
    letters = seen_letters(text)
    if len(letters) > MAX_LETTERS:
        return True  # to look through it would take long, and nobody asks so much
    return any(contains_nearly(letters, words, others) for words, others in _OWN_WORDS)


def seen_letters(text: str) -> str:
    """The Latin letters that a reader sees, without what stands between them."""
    folded = unicodedata.normalize("NFKD", text).casefold().translate(_READ_AS)
    return _NO_LETTERS.sub("", folded)


def contains_nearly(text: str, words: str, others: int) -> bool:
    """Whether some part of a text is ``words`` but for so many letters (Sellers' algorithm)."""
    if len(text) < len(words) - others:
        return False
    # The least number of changes with which words[:n] ends at this place of the text.
    column = list(range(len(words) + 1))
    for letter in text:
        before, column[0] = column[0], 0
        for index, wanted in enumerate(words, 1):
            changed = min(before + (letter != wanted), column[index] + 1, column[index - 1] + 1)
            before, column[index] = column[index], changed
        if column[-1] <= others:
            return True
    return False
