"""The same model by Keras's own fit(), to compare: python plain.py [SEED [EPOCHS]]"""

import sys

import keras
import tensorflow as tf
from keras_functional import BATCH, EPOCHS, compiled, households


def main(seed=0, epochs=EPOCHS):
    keras.utils.set_random_seed(seed)
    (*x, y), (*test_x, test_y) = (list(each.values()) for each in households().values())
    net = compiled()
    for epoch in range(epochs):
        net.fit(x, y, batch_size=BATCH, verbose=0)
        found = net.evaluate(test_x, test_y, batch_size=BATCH, verbose=0, return_dict=True)
        print(f"epoch {epoch + 1}: test auc {found['auc']:.4f}  accuracy {found['accuracy']:.4f}")


if __name__ == "__main__":
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    main(*map(int, sys.argv[1:]))
