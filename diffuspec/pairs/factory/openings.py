"""First words of questions, which a target completes: it asks for more than it does on its own."""

from __future__ import annotations


def _split(text: str) -> tuple[str, ...]:
    return tuple(words for line in text.strip().splitlines() for words in line.split("|"))


OPENINGS = _split("""
Write a|Write an email|Write a short story about|Write a poem|Write a letter to|Write a speech
Draft a|Compose|Create a|Describe a|Describe the|Imagine|Pretend to be|You are a|Suggest|Plan a
Give me|List|Make a list of|Rewrite|Edit the following|Improve this sentence:|Come up with
Help me|Explain|Explain why|Explain how|Explain in simple terms|Compare
What is the difference between|Discuss|What are some|What would happen if|How can I|How should
If a|Suppose|Is it possible to|Should|What are the advantages of|Give an example of|Define
Evaluate|Which of the following|Tell me about|Who wrote|Who is|Who was the first|Who invented
Who won|When did|When was|Where is|Where did|What is|What is the capital of|What year did
What kind of|How many|How long|How old|How far|Why is|Why do|who sings|when does the|where was
what does|how did|in which|name the|what is the meaning of|Which|Tom has 12|Anna buys 3
A farmer has 40|A train travels|There are 25|A baker makes|If Ben has|Each box|Maria earns $15
A shop sells|In a class of 30|Half of the|The price of a|Two friends|A car uses|Every day, Nora
A recipe needs|The sum of|A rectangle is|Find the|Solve|Calculate|What is 15% of
Write a Python function|Write a program that|Implement a|Write a SQL query|Given a list of
Given a|Fix the bug in|How do I|What does this code do?|def |Write a regular expression
Given a string|Create a|Extract|Identify the|Classify|Read the following|From the following text
Convert|Format|Count|Find all|Translate|Translate to English:|Summarize|Sort|Fill in
Correct the grammar:|Put in order:|Match
""")

# What a user says after an answer.
SECOND_OPENINGS = _split("""
Can you|Could you|What about|What if|Why|How|Now|Now rewrite|Make it shorter|Explain|Give me
Is it|Which|Write|And|But|Summarize|Please|In one sentence|Translate|Are there|Tell me more
""")

SUMMARIES: tuple[str, ...] = (
    "Summarize: {text}",
    "Summarize the following text.\n\n{text}",
    "{text}\n\nSummarize the text above in a few sentences.",
    "What are the main points of this text?\n\n{text}",
    "Please write a summary of this passage: {text}",
)

ABOUT_TEXTS: tuple[str, ...] = (
    "Answer the question from the text.\n\nText: {text}\n\nQuestion:",
    "{text}\n\nUse the passage above to answer the question.\nQuestion:",
    "Read this and answer.\n\n{text}\n\nQ:",
    "Context:\n{text}\n\nGiven this context, answer the following question.\n",
)
