# reward.py
def problems():
    for number in range(1, 100):
        yield {"prompt": f"{number}+{number}=", "answer": 2 * number}


def score(completion, answer):
    digits = sum(map(str.__eq__, completion, answer))
    return {"right": 0.8 * (completion == answer), "digits": 0.2 * digits / len(answer)}
