from project.data import DigitsDataModule


def test_facts_are_known_before_any_file_is_read(facts):
    facts(DigitsDataModule, channels=1, size=8)


def test_test_set_has_36_of_each_digit():
    data = DigitsDataModule()
    data.setup()
    assert data.test_set is not None
    assert data.test_set.labels.bincount().tolist() == [36] * 10
    assert len(data.load(train=True)[1]) == 1437


def test_no_test_image_is_among_the_training_images():
    data = DigitsDataModule()
    (train, _), (test, _) = data.load(True), data.load(False)
    same = (train.flatten(1)[:, None] == test.flatten(1)[None]).all(-1)
    assert not same.any()


def test_constants_are_those_of_the_training_images():
    images, _ = DigitsDataModule().load(train=True)
    pixels = images.double() / 255
    # Four decimals are stored.
    assert abs(float(pixels.mean()) - DigitsDataModule.mean[0]) < 5e-5
    assert abs(float(pixels.std()) - DigitsDataModule.std[0]) < 5e-5
