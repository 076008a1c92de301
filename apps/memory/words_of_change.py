"""The words by which statements in five languages (English, German, French, Spanish, Italian) show who they are about,
what they say, and whether something changed: data of `edge.apps.memory.judge`."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.casefold().split())


FIRST = _words(
    "i ich je j yo io vivo trabajo tengo soy fumo toco como hablo conduzco uso estoy llevo juego bebo dejé cancelé "
    "vendí compré cumplí volví lavoro ho sono abito suono mangio parlo guido bevo gioco sto faccio smesso me he mudé"
)
"""Words that begin a statement of the speaker: pronouns, and verbs of the languages that leave them out."""

FIRST_AFTER_MI = _words("sono chiamo trovo piace piacciono trasferisco")
"""Italian "mi" before these is the speaker, otherwise "mi" is Spanish for "my"."""

WE = _words("we wir nous on nosotros noi")

VAGUE = _words(
    "you he she it they this that these those there his her its their du er sie es ihr das dies sein seine ihre il "
    "elle ils elles tu vous ce cela ça son sa ses leur él ella ellos ellas eso esto su sus usted lui lei loro questo "
    "quello suo sua"
)
"""Subjects that only the conversation explains. Nothing is concluded from them."""

ARTICLES = _words(
    "the a an der die das den dem des ein eine einen einem einer le la les l un une du de d el los las una il lo gli "
    "i uno"
)
INDEFINITE = _words("a an ein eine einen einem einer un une una uno")

HOME = _words(
    "live lives living reside resides wohne wohnt lebe lebt gezogen umgezogen habite vis vit déménagé vivo vive "
    "resido mudé mudó mudado abito abita trasferito trasferita"
)
WORK = _words("work works employed joined arbeite arbeitet travaille trabajo trabaja lavoro lavora")
WORK_AT = _words("at bei chez")
"""Before the name of an employer, with a word of `STARTED`: "started at", "zurück bei", "de retour chez"."""
WORK_PLACE = _words("at for bei beim chez en alla al allo")
NAMED = _words("called named heißt heiße appelle llama llamo chiama chiamo")
IS = _words("is are am m re ist sind bin est sont suis es son soy está è sono sei")
AGE = _words("old alt ans años anni turned geworden cumplí compiuto")
MOVED = _words(
    "moved postponed rescheduled shifted changed verschoben verlegt geändert reporté reportée repoussée déplacée "
    "cambió aplazó trasladó spostata spostato rinviata went rose dropped increased stieg gestiegen augmenté baissé "
    "subió aumentó aumentato salito"
)
OTHER_VERBS = _words(
    "has have had uses use drive drives costs runs plays play likes like eats eat speaks read starts started "
    "quit switched got hat habe haben fahre fährt benutze benutzt benutzen kostet beträgt läuft spielt spiele wurde "
    "mag esse spreche a ai as utilise conduis conduit coûte tourne joue fume fumo mange parle aime va utiliza usa "
    "cuesta corre toca juega tiene se ha costa gira suona utilizzo prende planned painted smoke rauche deploy"
)
VERBS = HOME | WORK | NAMED | IS | MOVED | OTHER_VERBS

FUNCTIONAL = _words(
    "name number address email password birthday age price rent salary deadline port phone numéro adresse loyer prix "
    "número dirección alquiler precio numero indirizzo affitto prezzo adresse miete preis telefonnummer nummer "
    "passwort"
)
"""Nouns that have one value at a time."""

FAVOURITE = _words("favourite favorite préférée préféré favorito favorita preferito preferita")
FAVOURITE_PREFIX = "liebling"

EXCLUSIVE = _words(
    "use uses drive drives run runs study studies deploy ship benutze benutzt benutzen fahre fährt läuft studiere "
    "utilise conduis conduit tourne conduzco usa uso utiliza guido utilizza utilizzo"
)
"""Verbs with one object at a time, if a word says that it changed."""

PRACTISED = _words("play plays spiele spielt joue toco toca juego juega suono suona gioco gioca")
STARTED = _words("started starting start back zurück retour")
SWITCHED = _words("switched migrated umgestiegen passé passée migrado migrato")

NEW = _words(
    "now new moved switched started again back became become turned since migrated sold replaced instead jetzt neu "
    "neue neuer neues neuen inzwischen gezogen umgezogen umgestiegen verschoben wieder zurück geworden seit verkauft "
    "stattdessen sofort maintenant désormais nouveau nouvelle nouvel déménagé reportée reporté retour dorénavant "
    "ahora nuevo nueva mudé mudó cambió ya vuelto adesso ora nuovo nuova trasferito trasferita spostata spostato "
    "tornato tornata compiuto married promoted"
)
NEW_PHRASES = ("went up", "went down", "from now on", "ab sofort", "de nouveau", "de nuevo", "di nuovo", "passé à")

ENDED = _words(
    "quit stopped cancelled canceled ended gave sold aufgehört gekündigt beendet verkauft arrêté annulé vendu résilié "
    "dejé cancelé vendí abandoné smesso annullato venduto disdetto"
)
ENDED_PHRASES = ("no longer", "any more", "anymore", "nicht mehr", "ya no", "non più")
ENDED_PAIRS = (("kein", "mehr"), ("keine", "mehr"), ("keinen", "mehr"), ("ne", "plus"), ("n", "plus"), ("non", "più"))

CORRECTED = _words("correction actually sorry korrektur nein entschuldigung corrección perdón correzione scusa")
CORRECTED_PHRASES = ("en fait", "en realidad", "in realtà", "i meant", "ich meinte")

ALSO = _words(
    "also too another besides additionally auch außerdem zusätzlich noch weiterer weitere aussi également autre outre "
    "también además otro otra anche inoltre altro altra"
)

UNSURE = _words(
    "would want wants wish hope hoping maybe perhaps might may should could if plan planning considering thinking "
    "dream würde möchte will vielleicht könnte sollte falls wenn hoffe überlege aimerais voudrais peut-être espère "
    "pourrais gustaría quisiera quizás quizá tal espero podría quiero vorrei forse piacerebbe spero potrei voglio "
    "will shall nearly almost imagine pretend unless"
)
PAST = _words(
    "used before previously formerly once was were born ago früher davor damals war geboren ehemals avant auparavant "
    "jadis étais était antes anteriormente era prima precedentemente passato ero"
)
"""A statement with one of these tells of an earlier time, and ends nothing."""

NOT = _words("not no nicht kein keine keinen ne n pas non")

FROM = _words("from von de da del des")

AUXILIARY = IS | _words("have has had been habe hat haben ai as a ont he ha han ho hai si se s me mi")

_SMALL = _words(
    "in at to on for from of with and or as by my our your mein meine meinen meiner unser unsere mon ma mes notre "
    "mi mis nuestro il mio mia miei nostro bei nach zu am im um mit für von auf und als chez à au aux en dans sur "
    "pour avec et par sur con por para y al del alla allo a da di del della su per e che just gerade gestern "
    "yesterday last week i ich je j yo io we wir nous me mich mir se s m ve re d ll up down pm is been so very "
    "really ab but aber mais pero ma"
)
FUNCTION = ARTICLES | NOT | AUXILIARY | _SMALL
"""Words that are no part of a value."""

DATES = _words(
    "monday tuesday wednesday thursday friday saturday sunday mondays tuesdays wednesdays thursdays fridays montag "
    "dienstag mittwoch donnerstag freitag samstag sonntag lundi mardi mercredi jeudi vendredi samedi dimanche lunes "
    "martes miércoles jueves viernes sábado domingo lunedì martedì mercoledì giovedì venerdì sabato domenica january "
    "february march april may june july august september october november december januar februar märz mai juni juli "
    "oktober dezember janvier février mars avril juin juillet août septembre octobre novembre décembre enero febrero "
    "marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre gennaio febbraio aprile maggio giugno "
    "luglio settembre ottobre novembre dicembre"
)
