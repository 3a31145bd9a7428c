<?php
// Manages a pet, an image, an order and a user with a client that openapi-generator makes for PHP.

declare(strict_types=1);

use OpenAPI\Client\Api\PetApi;
use OpenAPI\Client\Api\StoreApi;
use OpenAPI\Client\Api\UserApi;
use OpenAPI\Client\ApiException;
use OpenAPI\Client\Configuration;
use OpenAPI\Client\Model;

// Any warning of PHP is an error.
set_error_handler(function (int $kind, string $message, string $file, int $line): never {
    throw new ErrorException($message, 0, $kind, $file, $line);
});
// Debian's packages of Guzzle, and the client.
require 'GuzzleHttp/autoload.php';
spl_autoload_register(function (string $name): void {
    $path = __DIR__ . '/php/lib/' . str_replace('\\', '/', substr($name, strlen('OpenAPI\\Client\\'))) . '.php';
    if (str_starts_with($name, 'OpenAPI\\Client\\')) {
        require $path;
    }
});

function check(bool $holds, mixed $what = ''): void
{
    if (!$holds) {
        throw new Exception('wrong: ' . print_r($what, true));
    }
}

function fails(int $status, callable $call): void
{
    try {
        $call();
    } catch (ApiException $error) {
        check($error->getCode() === $status && $error->getResponseObject()->getCode() === $status, $error->getMessage());
        return;
    }
    throw new Exception("no $status");
}

[, $host, $key, $image] = $argv;
$image = base64_decode($image);
$anonymous = (new Configuration())->setHost("$host/api/v3");
$admin = (clone $anonymous)->setApiKey('api_key', $key);
$pets = new PetApi(config: $admin);
$store = new StoreApi(config: $admin);
$users = new UserApi(config: $admin);

$tags = [new Model\Tag(['name' => 'php'])];
$pet = $pets->addPet(new Model\PetInput(['name' => 'Rex', 'tags' => $tags]));
$id = $pet->getId();
$replaced = $pets->updatePet(new Model\PetReplacement(['id' => $id, 'name' => 'Max', 'tags' => $tags]));
check($replaced->getName() === 'Max', $replaced);
check($pets->updatePetWithForm($id, 'Ada')->getName() === 'Ada');
$found = $pets->findPetsByTags(['php', 'none']);
check(count($found) === 1 && $found[0]->getId() === $id, $found);

$path = tempnam(sys_get_temp_dir(), 'image');
file_put_contents($path, $image);
$uploaded = $pets->uploadFile($id, new SplFileObject($path));
unlink($path);
$got = $pets->getImage($id, $uploaded->getImageId());
check($got->fread($got->getSize()) === $image, 'another image');
$pets->deleteImage($id, $uploaded->getImageId());

$order = $store->placeOrder(new Model\OrderInput(['pet_id' => $id, 'quantity' => 2]));
check($order->getQuantity() === 2 && $order->getStatus() === Model\OrderStatus::PLACED, $order);
$approved = $store->patchOrder($order->getId(), new Model\OrderPatch(['status' => Model\OrderStatus::APPROVED]));
check($approved->getStatus() === Model\OrderStatus::APPROVED, $approved);
$store->deleteOrder($order->getId());
fails(404, fn () => $store->getOrderById($order->getId()));

$login = ['username' => 'php-Adä', 'password' => 'correct horse battery staple'];
$unknown = new UserApi(config: $anonymous);
$unknown->createUser(new Model\UserInput($login));
// The client returns a text as it is written in JSON.
$token = json_decode($unknown->createSession(new Model\Login($login)));
$own = new UserApi(config: (clone $anonymous)->setAccessToken($token));
$changed = $own->updateUser($login['username'], new Model\UserDetails(['first_name' => 'Ada']));
check($changed->getFirstName() === 'Ada', $changed);
$own->logoutUser();
fails(401, fn () => $own->getUserByName($login['username']));
$users->deleteUser($login['username']);
$pets->deletePet($id);
fails(404, fn () => $pets->getPetById($id));
