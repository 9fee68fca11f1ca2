"""Makes up clicks on advertisements, and writes them to data/train.npz and data/test.npz. See README.md.

A hidden logistic model says how likely a click is: what each column adds by itself, what pairs of columns add
together; then chance decides. All of it follows from the seed.
"""

from pathlib import Path

import numpy as np

import elasticflow as ef

SEED, NUM_TRAIN, NUM_TEST = 0, 200_000, 50_000
FOLDER = Path(__file__).parent / "data"

NUM_USERS, NUM_ADS, NUM_TOPICS, MOST_INTERESTS = 10_000, 2_000, 40, 8
SITES = [f"site=www.site-{i}.example" for i in range(300)]
REGIONS = [f"region={i}" for i in range(100)]
DEVICES = [f"device=model {i}" for i in range(30)]
INTERESTS = [f"interest={i}" for i in range(60)]
FIRST_USER, FIRST_AD, FIRST_TOPIC = 1 << 60, 2 << 60, 3 << 60
"""All columns share a table: so the numbers of each begin elsewhere, and texts begin with its name."""
PADDING = -1


def zipf(chance, num_ids, exponent, shape):
    """Numbers below ``num_ids``; number i is drawn in proportion to 1 / (i + 1) ** exponent."""
    weights = 1 / np.arange(1, num_ids + 1) ** exponent
    return chance.choice(num_ids, shape, p=weights / weights.sum())


def crossed(left, right):
    """An id for each pair of ids. Two pairs hardly ever have the same: there are 2 ** 64."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    return (left.view(np.uint64) * golden + right.view(np.uint64)).view(np.int64)


def auc(scores, y):
    """The share of pairs, one clicked and one not, in which the clicked one scores higher."""
    ranks = np.empty(len(y))
    ranks[scores.argsort()] = np.arange(1, len(y) + 1)
    clicks = int(y.sum())
    return (ranks[y == 1].mean() - (clicks + 1) / 2) / (len(y) - clicks)


def make(chance, size):
    """The columns of ``size`` records, and the log odds from which ``y`` was drawn."""
    # People have a region, a device, an age (of mean 0, deviation 1) and up to 8 interests.
    region_of = zipf(chance, len(REGIONS), 1.0, NUM_USERS)
    device_of = zipf(chance, len(DEVICES), 1.0, NUM_USERS)
    age_of = chance.standard_normal(NUM_USERS)
    interests_of = zipf(chance, len(INTERESTS), 0.7, (NUM_USERS, MOST_INTERESTS))
    num_interests_of = chance.integers(0, MOST_INTERESTS + 1, NUM_USERS)
    topic_of = zipf(chance, NUM_TOPICS, 0.7, NUM_ADS)

    # In a record one of them sees an advertisement on a site, at some time of the day.
    user, ad = zipf(chance, NUM_USERS, 0.8, size), zipf(chance, NUM_ADS, 0.9, size)
    site, hour = zipf(chance, len(SITES), 1.0, size), chance.random(size)
    days_shown = chance.exponential(1.0, size)
    topic, region, device, age = topic_of[ad], region_of[user], device_of[user], age_of[user]
    interests, num_interests = interests_of[user], num_interests_of[user]
    there = np.arange(MOST_INTERESTS) < num_interests[:, None]

    def effects(deviation, *shape):
        return chance.normal(0, deviation, shape)

    # What each column adds.
    evening = np.sin(2 * np.pi * hour)
    logit = -0.9 + 0.3 * evening - 0.3 * days_shown - 0.2 * age**2
    logit += effects(0.4, NUM_USERS)[user] + effects(0.4, NUM_ADS)[ad] + effects(0.5, NUM_TOPICS)[topic]
    logit += effects(0.4, len(SITES))[site]
    logit += effects(0.3, len(REGIONS))[region] + effects(0.3, len(DEVICES))[device]
    # What pairs add, and generalizes: tastes and topics meet in three hidden dimensions.
    tastes, appeals = effects(1.0, len(INTERESTS), 3), effects(1.0, NUM_TOPICS, 3)
    taste = (tastes[interests] * there[..., None]).sum(axis=1)
    taste /= np.sqrt(np.maximum(1, num_interests))[:, None]
    logit += 0.6 * (taste * appeals[topic]).sum(axis=1) + age * effects(0.4, NUM_TOPICS)[topic]
    # What pairs add, and can only be remembered.
    logit += effects(0.7, len(SITES), NUM_TOPICS)[site, topic]
    logit += effects(0.4, len(REGIONS), NUM_TOPICS)[region, topic]
    clicked = chance.random(size) < 1 / (1 + np.exp(-logit))

    site_id, region_id = ef.hash_ids(SITES)[site], ef.hash_ids(REGIONS)[region]
    device_id, interest_id = ef.hash_ids(DEVICES)[device], ef.hash_ids(INTERESTS)[interests]
    user_id, ad_id, topic_id = FIRST_USER + user, FIRST_AD + ad, FIRST_TOPIC + topic
    liked = np.where(there, crossed(interest_id, topic_id[:, None]), PADDING)
    pairs = [crossed(site_id, topic_id), crossed(region_id, topic_id), *liked.T]
    columns = {
        "x": np.stack([age, evening, np.cos(2 * np.pi * hour), days_shown], axis=1).astype(np.float32),
        "ids": np.stack([user_id, ad_id, topic_id, site_id, region_id, device_id], axis=1),
        "interests": np.where(there, interest_id, PADDING),
        "crosses": np.stack(pairs, axis=1),
        "y": clicked.astype(np.float32),
    }
    return columns, logit


def main():
    columns, logit = make(np.random.default_rng(SEED), NUM_TRAIN + NUM_TEST)
    FOLDER.mkdir(exist_ok=True)
    for name, rows in {"train": slice(0, NUM_TRAIN), "test": slice(NUM_TRAIN, None)}.items():
        part = {column: values[rows] for column, values in columns.items()}
        np.savez(FOLDER / f"{name}.npz", **part)
        best = auc(logit[rows], part["y"])
        print(f"{name}: {part['y'].mean():.1%} are clicks; the hidden model has an AUC of {best:.4f}")


if __name__ == "__main__":
    main()
