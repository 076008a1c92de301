"""Paragraphs in the encodings that files had before UTF-8, each of which must be recognised by itself."""

from __future__ import annotations

import pytest

from edge.apps.documents.decoding import decode

PARAGRAPHS = {
    "french": (
        "Où est passé l'élève ? À l'école, bien sûr. Le contrat a été signé le même jour que la pièce jointe, "
        "après réception de la facture. Très cordialement, à bientôt. Le château est fermé pendant l'été ; la "
        "façade sera refaite dès que le cœur du bâtiment aura séché."
    ),
    "portuguese": (
        "A situação não está fácil: as eleições estão próximas e ninguém conhece os candidatos. Três irmãos "
        "construíram a ponte com as próprias mãos, e à noite a população veio vê-la. Amanhã começam as férias; o "
        "avô levará as crianças à praia."
    ),
    "spanish": (
        "¿Dónde está el niño? El año pasado llovió muchísimo en la montaña, y el río subió más de tres metros. "
        "Los vecinos pidieron ayuda; según el alcalde, la situación era difícil. Mañana habrá una reunión aquí."
    ),
    "italian": (
        "La città più antica è sull'altra riva, però l'università si trova già di là dal fiume. Perché non ci "
        "andiamo lunedì? Così vedrà anche la chiesa, che è aperta fino a metà pomeriggio, e potrà salire sulla "
        "torre."
    ),
    "german": (
        "Der Fluß tritt im Frühjahr über die Ufer. Die Straße ist dann gesperrt, natürlich für länger, und die "
        "Züge fahren später. Wer trotzdem hinüber möchte, muß bis zur nächsten Brücke gehen; das dauert ungefähr "
        "zwei Stunden."
    ),
    "swedish": (
        "Smörgåsbordet är dukat på svenska. Båten går från ön klockan åtta, och på kvällen blir det kallt även på"
        " sommaren. Jag har inte sett någon så glad över två små fåglar förut; de sjöng hela vägen över sjön."
    ),
    "danish": (
        "Åen løber gennem byen, og når sneen smelter, står vandet højt. Børnene må ikke gå på broen før på "
        "søndag. Bageren sælger rugbrød og æblekage; han åbner først klokken otte, når færgen er nået over "
        "fjorden."
    ),
    "norwegian": (
        "Elva går over sine bredder om våren når snøen smelter på fjellet. Da er veiene stengt, og båten må gå en"
        " lengre vei. Vi så også tre små øyer på vei hjem; været var fint, så vi ble værende til kvelden på "
        "bryggen."
    ),
    "icelandic": (
        "Áin flæðir yfir bakka sína á vorin þegar snjórinn bráðnar í fjöllunum. Þá eru vegirnir ófærir og fólkið "
        "verður að bíða. Ísinn er blár því að ekkert loft er í honum; það sást best í gær þegar sólin skein á "
        "jökulinn."
    ),
    "finnish": (
        "Joki tulvii keväällä, kun lumi sulaa vuorilla. Tiet ovat silloin poikki, ja kylään pääsee vain veneellä."
        " Leipä vaatii aikaa, jauhoja, vettä ja suolaa; äiti tietää tämän hyvin, eikä hän kysy enää mitään."
    ),
    "dutch": (
        "De rivier treedt in het voorjaar buiten haar oevers. België en Italië hebben daarover geïnformeerd; één "
        "bericht is gecoördineerd verstuurd. De ideeën van de zeeën zijn geëerd, en de reünie kost 20 € per "
        "persoon."
    ),
    "catalan": (
        "El riu creix a la primavera, quan la neu es fon a les muntanyes. Aleshores els camins són impracticables"
        " i ningú no hi pot passar; així és cada any. Això no és res de nou: també passà quan la col·lecció de "
        "l'àvia era allà."
    ),
    "czech": (
        "Řeka se na jaře vylévá z břehů, když v horách taje sníh. Silnice jsou pak neprůjezdné a lidé čekají "
        "doma. Chléb potřebuje čas, mouku, vodu a sůl; příliš žluťoučký kůň úpěl ďábelské ódy. Zítra přijede i "
        "můj bratr."
    ),
    "slovak": (
        "Rieka sa na jar vylieva z brehov, keď sa v horách topí sneh. Cesty sú potom neprejazdné a ľudia čakajú "
        "doma. Chlieb potrebuje čas, múku, vodu a soľ; ráno príde aj môj brat, ktorý veľmi rád spieva dlhé "
        "piesne. Ešte šťastie, že máme čas počkať."
    ),
    "polish": (
        "Wiosną rzeka występuje z brzegów, gdy w górach topnieje śnieg. Drogi są wtedy nieprzejezdne, a ludzie "
        "czekają w domach. Chleb potrzebuje czasu, mąki, wody i soli; jutro przyjdzie też mój brat, który będzie "
        "śpiewał długą pieśń."
    ),
    "hungarian": (
        "A folyó tavasszal kilép a medréből, amikor a hegyekben elolvad a hó. Az utak ilyenkor járhatatlanok, és "
        "az emberek otthon várnak. A kenyérhez idő, liszt, víz és só kell; holnap eljön a bátyám is, aki hosszú "
        "dalokat szeret énekelni, és gyűlöli az esőt."
    ),
    "romanian": (
        "Primăvara râul iese din albie, când se topeşte zăpada în munţi. Drumurile sunt atunci închise, iar "
        "oamenii aşteaptă acasă. Pâinea are nevoie de timp, făină, apă şi sare; mâine vine şi fratele meu, care "
        "cântă mult."
    ),
    "croatian": (
        "Rijeka se u proljeće izlijeva kad se u planinama topi snijeg. Ceste su tada neprohodne, a ljudi čekaju "
        "kod kuće. Kruh traži vrijeme, brašno, vodu i sol; sutra će doći i moj brat, koji želi pjevati još duže "
        "večernje pjesme među nama."
    ),
    "turkish": (
        "Dağlarda kar eriyince ırmak ilkbaharda taşar. O zaman yollar kapanır ve insanlar evlerinde bekler. Ekmek"
        " için zaman, un, su ve tuz gerekir; yarın ağabeyim de gelecek. İstanbul'da akşam üzeri çok güzel bir "
        "şarkı dinledik."
    ),
    "lithuanian": (
        "Pavasarį upė išsilieja iš krantų, kai kalnuose tirpsta sniegas. Tada keliai būna neišvažiuojami, o "
        "žmonės laukia namuose. Duonai reikia laiko, miltų, vandens ir druskos; rytoj ateis ir mano brolis, kuris"
        " mėgsta ilgas dainas apie jūrą."
    ),
    "latvian": (
        "Pavasarī upe iziet no krastiem, kad kalnos kūst sniegs. Tad ceļi nav izbraucami, un cilvēki gaida mājās."
        " Maizei vajag laiku, miltus, ūdeni un sāli; rīt atnāks arī mans brālis, kuram ļoti patīk garas dziesmas "
        "par jūru un mežiem."
    ),
    "estonian": (
        "Jõgi tõuseb kevadel üle kallaste, kui mägedes sulab lumi. Siis on teed läbimatud ja inimesed ootavad "
        "kodus. Leib vajab aega, jahu, vett ja soola; homme tuleb ka mu vend, kes armastab öösel pikki laule "
        "laulda."
    ),
    "russian": (
        "Река выходит из берегов весной, когда в горах тает снег. Дороги тогда непроходимы, и люди ждут дома. "
        "Хлебу нужны время, мука, вода и соль; завтра придёт и мой брат, который любит долгие песни о море."
    ),
    "ukrainian": (
        "Навесні річка виходить з берегів, коли в горах тане сніг. Дороги тоді непрохідні, і люди чекають удома. "
        "Хлібові потрібні час, борошно, вода й сіль; завтра прийде і мій брат, який любить довгі пісні про море."
    ),
    "bulgarian": (
        "Напролет реката излиза от бреговете си, когато в планината се топи снегът. Тогава пътищата са "
        "непроходими и хората чакат у дома. Хлябът иска време, брашно, вода и сол; утре ще дойде и брат ми, който"
        " обича дълги песни."
    ),
    "greek": (
        "Το ποτάμι ξεχειλίζει την άνοιξη, όταν λιώνει το χιόνι στα βουνά. Τότε οι δρόμοι κλείνουν και οι άνθρωποι"
        " περιμένουν στο σπίτι. Το ψωμί θέλει χρόνο, αλεύρι, νερό και αλάτι· αύριο θα έρθει και ο αδελφός μου."
    ),
    "hebrew": (
        "הנהר עולה על גדותיו באביב, כאשר השלג נמס בהרים. הדרכים חסומות אז, והאנשים מחכים בבית. הלחם צריך זמן, "
        "קמח, מים ומלח; מחר יבוא גם אחי, שאוהב שירים ארוכים על הים."
    ),
    "arabic": (
        "يفيض النهر في الربيع عندما يذوب الثلج في الجبال. عندها تكون الطرق مقطوعة وينتظر الناس في البيوت. يحتاج "
        "الخبز إلى الوقت والدقيق والماء والملح، وغدا يأتي أخي الذي يحب الأغاني الطويلة عن البحر."
    ),
    "thai": (
        "แม่น้ำเอ่อล้นตลิ่งในฤดูใบไม้ผลิเมื่อหิมะบนภูเขาละลาย ถนนจึงถูกปิด และผู้คนรออยู่ที่บ้าน "
        "ขนมปังต้องใช้เวลา แป้ง น้ำ และเกลือ พรุ่งนี้พี่ชายของฉันจะมา"
    ),
    "japanese": (
        "川は春に氾濫します。山の雪が溶けるからです。道は通れなくなり、人々は家で待ちます。パンには時間と"
        "小麦粉、水と塩が必要です。明日は兄も来ます。彼は海についての長い歌が好きです。"
    ),
    "chinese": (
        "春天，山上的雪融化时，河水会漫过河岸。那时道路不通，人们在家里等待。做面包需要时间、面粉、水和盐"
        "；明天我的哥哥也会来，他喜欢唱关于大海的长歌。"
    ),
    "taiwanese": (
        "春天，山上的雪融化時，河水會漫過河岸。那時道路不通，人們在家裡等待。做麵包需要時間、麵粉、水和鹽"
        "；明天我的哥哥也會來，他喜歡唱關於大海的長歌。"
    ),
    "korean": (
        "봄에 산의 눈이 녹으면 강물이 넘칩니다. 그때는 길이 막히고 사람들은 집"
        "에서 기다립니다. 빵에는 시간과 밀가루, 물과 소금이 필요합니다. 내일은"
        " 바다에 대한 긴 노래를 좋아하는 형도 "
        "옵니다."
    ),
}
TEXTS = [
    *((name, "cp1252") for name in ("french", "portuguese", "spanish", "italian", "german", "swedish", "danish")),
    *((name, "cp1252") for name in ("norwegian", "icelandic", "finnish", "estonian", "dutch", "catalan")),
    *((name, "cp1250") for name in ("czech", "slovak", "polish", "hungarian", "romanian", "croatian")),
    *((name, "cp1257") for name in ("lithuanian", "latvian", "estonian")),
    *((name, "cp1251") for name in ("russian", "ukrainian", "bulgarian")),
    *((name, "iso8859_2") for name in ("czech", "polish")),
    *((name, "cp850") for name in ("german", "spanish", "danish")),
    *((name, "mac_roman") for name in ("german", "french", "italian")),
    *(("japanese", codec) for codec in ("shift_jis", "euc_jp", "iso2022_jp")),
    *((name, codec) for name in ("russian", "bulgarian") for codec in ("cp866", "mac_cyrillic", "iso8859_5", "cp855")),
    ("ukrainian", "koi8_u"),
    ("korean", "iso2022_kr"),
    ("french", "iso8859_15"),
    ("turkish", "cp1254"),
    ("russian", "koi8_r"),
    ("greek", "cp1253"),
    ("hebrew", "cp1255"),
    ("arabic", "cp1256"),
    ("thai", "cp874"),
    ("chinese", "gb18030"),
    ("taiwanese", "big5"),
    ("korean", "euc_kr"),
]


@pytest.mark.parametrize("length", ["a line", "a paragraph", "a page"])
@pytest.mark.parametrize(("language", "codec"), TEXTS)
def test_a_text_is_read_in_the_encoding_it_was_written_in(language: str, codec: str, length: str) -> None:
    paragraph = PARAGRAPHS[language]
    text = {"a line": paragraph[:160], "a paragraph": paragraph, "a page": "\n".join([paragraph] * 12)}[length]
    assert decode(text.encode(codec)).text == text


def test_a_quote_that_opens_behind_a_word_is_a_letter_of_dos() -> None:
    """Its é is where cp1252 has a low quote."""
    text = "Le contrat signé est passé, fermé, daté."
    assert decode(text.encode("cp850")).text == text


@pytest.mark.parametrize(
    ("text", "codecs"),
    [
        ("東京の桜は三月に咲く。", ("cp932", "euc_jp", "iso2022_jp")),
        ("会議は水曜日です", ("cp932", "euc_jp", "iso2022_jp")),
        ("Договор аренды квартиры", ("cp1251", "koi8_r", "cp866", "iso8859_5")),
        ("Привет, как дела? Встреча в среду.", ("cp1251", "koi8_r", "cp866", "iso8859_5")),
        ("Акт приёмки работ № 5", ("cp1251", "cp866", "iso8859_5")),
        ("הפגישה ביום רביעי", ("cp1255",)),
    ],
)
def test_a_few_words_are_enough(text: str, codecs: tuple[str, ...]) -> None:
    assert {codec: decode(text.encode(codec)).text for codec in codecs} == dict.fromkeys(codecs, text)


@pytest.mark.parametrize("language", [name for name, codec in TEXTS if codec == "cp1252"])
def test_any_few_words_in_latin_1_stay_in_it(language: str) -> None:
    """Six words say little about their language; that files are in cp1252 more often than in all others decides."""
    words = PARAGRAPHS[language].split()
    for first in range(0, len(words) - 5, 3):
        text = " ".join(words[first : first + 6])
        assert decode(text.encode("cp1252")).text == text


@pytest.mark.parametrize(
    "languages",
    [("french", "spanish", "italian", "finnish"), ("french", "portuguese", "danish", "icelandic", "finnish")],
)
def test_words_of_several_languages_are_latin_1(languages: tuple[str, ...]) -> None:
    """As in a list of names, of which no single language has all letters."""
    text = " ".join(word for name in languages for word in PARAGRAPHS[name].split() if not word.isascii())
    assert decode(text.encode("cp1252")).text == text


@pytest.mark.parametrize(
    "text",
    [
        "Price: £20",
        "20 €",
        "25 °C ± 2 µm, x² + 1½",
        "naïve",
        "São Paulo",
        "Århus",
        "¿Qué?",
        "città più università",
        "Grâce au gâteau du château",
        "É",
        "ÉTÉ À LA CRÊPERIE",
        "© 2004 Müller & Söhne GmbH",
        "“Quoted” – it’s… »so«, ‚so‘ and „so“",
        "François Müller, Søren Ångström, João, El Niño, Þór, Zoë, Šebek",
        "José Múñoz, Björn Åkesson, Zoë Liège, Þóra Æsir, Søren Øst, João Conceição, Françoise Hôtel, Jürgen Groß",
        "char *größe; // Länge",
        "1º lugar, 2ª vez",
    ],
)
@pytest.mark.parametrize("times", [1, 200])
def test_names_signs_and_quotes_are_latin_1_however_many_there_are(text: str, times: int) -> None:
    text = "\n".join([text] * times)
    assert decode(text.encode("cp1252")).text == text


@pytest.mark.parametrize(
    ("text", "codec"),
    [
        ("// счётчик слов\nint x = 5; // количество строк в файле\n", "cp1251"),
        ("int x; // 行数を数える変数です\nint y; // 文字列の長さを返します\n", "shift_jis"),
        ("int x; // 计算文件中的行数\n", "gb18030"),
        ("int x; // πλήθος γραμμών του αρχείου\n", "cp1253"),
    ],
)
def test_another_script_is_recognised_among_latin_letters(text: str, codec: str) -> None:
    assert decode(text.encode(codec)).text == text
