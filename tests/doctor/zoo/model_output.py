from zoo.parts import Pictures, Specimen, Task, case, small_net


@case("output-shape", groups=("model",), fast=True)
def last_layer_of_another_data_set(bad: bool) -> Specimen:
    """The last layer still has the outputs of the data set before."""
    return Specimen(Task(small_net(classes=6 if bad else 4)), Pictures(classes=4))
