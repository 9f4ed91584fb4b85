NETWORKS = (
    "torchvision:resnet34", "torchvision:resnet50", "torchvision:resnext50_32x4d", "torchvision:regnet_x_1_6gf",
    "torchvision:regnet_y_800mf", "torchvision:mobilenet_v2", "torchvision:mobilenet_v3_large", "torchvision:mnasnet1_0",
    "torchvision:efficientnet_b0", "timm:efficientnet_lite0", "torchvision:densenet121", "torchvision:vgg13",
    "torchvision:squeezenet1_1", "torchvision:googlenet", "torchvision:shufflenet_v2_x1_0", "timm:ghostnet_100",
    "timm:hrnet_w18_small", "timm:dla34", "timm:repvgg_a0", "timm:fbnetc_100",
)  # fmt: skip
