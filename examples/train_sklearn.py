"""Condense a training set as a step of scikit-learn code, and train its classifiers on the result.

Run: python examples/train_sklearn.py    (less than 30 s on two cores)
"""

from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from condenset.sklearn import Condenser

DIGITS = {"network": "convnet(width=64, depth=2)", "iterations": 100, "lr": 10}  # for images of 8x8 pixels
CLASSIFIERS = {
    "logistic regression": LogisticRegression(max_iter=1000),
    "support vector machine": SVC(),
    "multilayer perceptron": MLPClassifier((128, 128), max_iter=1000, random_state=0),
}


def main(method="dm", recipe=DIGITS, ipc=10):
    X, y = load_digits(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.2, stratify=y, random_state=0)
    condenser = Condenser(method, ipc=ipc, options=recipe, random_state=0)
    X_small, y_small = condenser.fit_resample(X_train, y_train)  # as samplers of imbalanced-learn
    print(f"{'test accuracy after training on':26}{len(X_small):>8} samples{len(X_train):>8} samples")
    accuracies = {}
    for name, classifier in CLASSIFIERS.items():
        small, whole = (
            make_pipeline(StandardScaler(), classifier).fit(*samples).score(X_test, y_test)
            for samples in ((X_small, y_small), (X_train, y_train))
        )
        print(f"{name:26}{small:>16.1%}{whole:>16.1%}")
        accuracies[name] = small
    return accuracies


if __name__ == "__main__":
    main()
