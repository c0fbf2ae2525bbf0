"""What the demo asks, and a piece of the memory that must come first."""

from __future__ import annotations

from typing import NamedTuple

MAYA, LIN = "demo/maya", "demo/linxiao"


class Question(NamedTuple):
    """Asked of one agent."""

    namespace: str
    text: str
    expected: str


BY_MEANING = (
    Question(MAYA, "Which food is dangerous for me?", "allergic to them"),
    Question(MAYA, "Who watches the dog when we are on holiday?", "Femke looks after"),
    Question(MAYA, "Which antibiotic must I avoid?", "penicillin"),
    Question(MAYA, "Which part of my body hurts when I run far?", "left knee"),
    Question(LIN, "我的猫叫什么名字？", "年糕"),
    Question(LIN, "我在学什么乐器？", "古琴"),
    Question(LIN, "东西坏了怎么办？", "先修"),
    Question(LIN, "国庆节打算去哪里玩？", "敦煌"),
)

ACROSS_LANGUAGES = (
    Question(MAYA, "我妈妈的生日是哪天？", "12th of May"),
    Question(MAYA, "跑步的时候我哪里疼？", "left knee"),
    Question(LIN, "What is the name of my cat?", "年糕"),
    Question(LIN, "Where does my mother have her knee surgery?", "邵逸夫"),
)

BY_WORDS = (
    Question(MAYA, "/etc/nginx/sites-available/harbor.conf", "harbor.conf"),
    Question(MAYA, "qwen2.5-coder-32b-instruct", "qwen2.5-coder-32b-instruct"),
    Question(MAYA, "E-4417", "E-4417"),
    Question(LIN, "192.168.1.30", "192.168.1.30"),
    Question(LIN, "茶", "茶"),
    Question(LIN, "敦煌", "敦煌"),
)
